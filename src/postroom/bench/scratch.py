"""Scratch tables for benchmarks in the given database: created, filled, counted and removed."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError

from postroom.message import Message
from postroom.outbox import Outbox
from postroom.rules.ordering import LANES, NO_LANE
from postroom.rules.stream.modes import OLDEST_SERVER
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.schema.migrations import upgrade
from postroom.store.schema.tables import metadata
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.sql.names import Names

SCHEMA = "postroom_bench"
PREFIX = "postroom_bench_"
PAYLOAD = b"x" * 200
CHUNK = 10_000


class Scratch:
    """Scratch tables."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = SCHEMA if resolve(url).drivername.startswith("postgresql") else None
        self.prefix = None if self.schema else PREFIX
        self._store = Store(url, self.schema, self.prefix)
        self.names: Names = self._store.names
        self._engine = create_engine(resolve(url))

    @property
    def dialect(self) -> str:
        """The database's name."""
        return self.names.dialect

    def create(self) -> None:
        """Create the tables; those of an interrupted run are removed first."""
        self.remove()
        self._store.call(lambda connection: upgrade(connection, self.names))

    def remove(self) -> None:
        """Remove the tables."""
        if self.schema:
            slots = Slots(self.names)
            self._store.run(slots.drop_slot(slots.slot_of(self._store.run(slots.server()))))
            self._store.run(single(f"DROP PUBLICATION IF EXISTS {self.names.quoted(slots.publication)}"))
        with self._engine.begin() as connection:
            if self.schema:
                connection.execute(text(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE"))
            else:
                connection.execute(text(f"DROP VIEW IF EXISTS {self.names.table('outbox_status')}"))
                metadata(self.names).drop_all(connection)

    def can_stream(self) -> bool:
        """Whether the write-ahead log can be read, by this user."""
        if self.dialect != "postgresql":
            return False
        slots = Slots(self.names)
        server = self._store.run(slots.server())
        is_enough = server.version >= OLDEST_SERVER * 10_000 and server.wal_level == "logical"
        return is_enough and self._store.run(slots.may_replicate())

    def log_snapshot(self) -> None:
        """Have the server log which transactions are open, as it does every 15 s: a slot is read from there on.

        Where the user may not ask for it, or the server is older than 16, nothing happens.
        """
        with suppress(DBAPIError), self._engine.begin() as connection:
            connection.execute(text("SELECT pg_log_standby_snapshot()"))

    def fill(self, messages: int, keys: int | None = None, *, streamed: bool = False) -> None:
        """Fill the tables with exactly this many messages, with this many different keys or none.

        `streamed`: without deliveries, for a relay that reads the write-ahead log.
        """
        tables = self.names.mapping()
        with self._engine.begin() as connection:
            for table in ("delivery", "receipt", "outbox"):
                word = "TRUNCATE" if self.schema else "DELETE FROM"
                connection.execute(text(f"{word} {tables[table]}"))
        self.fill_more(messages, keys, streamed=streamed)

    def fill_more(
        self, messages: int, keys: int | None = None, *, streamed: bool = False, payload: bytes = PAYLOAD
    ) -> None:
        """Add this many messages to what is there, all with this payload."""
        with self._engine.begin() as connection:
            if self.schema:
                self._generate(connection, messages, keys, streamed=streamed, payload=payload)
                return
            outbox = Outbox(table_prefix=self.prefix, brokers=[])
            for start in range(0, messages, CHUNK):
                numbers = range(start, min(start + CHUNK, messages))
                outbox.add_many(
                    connection,
                    [Message.new("bench", payload, key=None if keys is None else n % keys) for n in numbers],
                )

    def counts(self) -> tuple[int, int]:
        """The number of unsent messages, and of receipts."""
        tables = self.names.mapping()
        with self._engine.begin() as connection:
            left, sent = (
                connection.execute(text(f"SELECT count(*) FROM {tables[table]}")).scalar_one()  # noqa: S608 - as above
                for table in ("delivery", "receipt")
            )
        return left, sent

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()
        self._store.close()

    def _generate(
        self, connection: Connection, messages: int, keys: int | None, *, streamed: bool, payload: bytes
    ) -> None:
        """Insert the same rows as `add_many`, generated by PostgreSQL itself."""
        tables = self.names.mapping()
        key = "NULL::text" if keys is None else f"(n % {int(keys)})::text"
        hashed = f"('x' || left(md5({key}), 16))::bit(64)::bigint"
        lane = f"{NO_LANE}" if keys is None else f"({hashed} & {LANES - 1})"
        connection.execute(
            text(f"""
            WITH message AS (
                INSERT INTO {tables["outbox"]}
                    (id, topic, payload, content_type, ordering_key, headers, digest, streamed)
                SELECT gen_random_uuid(), 'bench', CAST(:payload AS bytea),
                    'application/octet-stream', {key}, '{{}}', md5(n::text) || md5(n::text), :streamed
                FROM generate_series(1, :messages) n
                RETURNING position, ordering_key
            )
            INSERT INTO {tables["delivery"]} (queue, position, state, lane, key_hash, size)
            SELECT 'default', position, 0, {lane.replace("(n % " + str(keys) + ")::text", "ordering_key")},
                {hashed.replace("(n % " + str(keys) + ")::text", "ordering_key") if keys is not None else "NULL"},
                octet_length(CAST(:payload AS bytea))
            FROM message WHERE NOT :streamed ORDER BY position"""),  # noqa: S608 - names that were validated, and numbers
            {"messages": messages, "streamed": streamed, "payload": payload},
        )


def single(text: str) -> Steps[None]:
    """One statement."""
    yield Query(text)


@contextmanager
def scratch(url: str) -> Iterator[Scratch]:
    """Tables to measure with, removed afterwards."""
    place = Scratch(url)
    try:
        place.create()
        try:
            yield place
        finally:
            place.remove()
    finally:
        place.close()
