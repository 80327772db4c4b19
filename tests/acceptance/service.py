"""A service with its database, for tests of the relay."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, text

from postroom import Admin, Message, Outbox
from postroom.admin import DeadLetter, Filter, Status
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.schema.migrations import upgrade

LARGEST = 2 * 1024 * 1024
"""More than the test brokers take."""


class Service:
    """A service's database: its tables, a way to commit messages, and what the outbox says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = Store(url)
        self.names = self._store.names
        self._store.call(lambda connection: upgrade(connection, self._store.names))
        self._admin = Admin(url)
        self.engine: Engine = create_engine(resolve(url))

    def commit(self, *messages: Message) -> list[Message]:
        with self.engine.begin() as connection:
            return Outbox(max_payload_bytes=LARGEST).add_many(connection, messages)

    def status(self) -> Status:
        return self._admin.status()

    def dead(self) -> list[DeadLetter]:
        return list(self._admin.dead_letters())

    def requeue(self, *letters: DeadLetter) -> None:
        self._admin.requeue(Filter([letter.id for letter in letters if letter.id]), actor="ada")

    def discard(self, *letters: DeadLetter) -> None:
        self._admin.discard(Filter([letter.id for letter in letters if letter.id]), actor="ada")

    def beat(self, queue: str, broker_down: str = "") -> None:
        """A relay says that it is alive, and serves the queue."""
        self._store.run(Workers(self._store.names, queue).beat("relay", 0, 0, broker_down))

    def live_and_die(self, seconds: float, lanes: int) -> None:
        """A relay says that it is alive, takes lanes, and is killed."""
        self._store.run(Workers(self._store.names).beat("killed", lanes, 0))
        if lanes:
            self._store.run(QueueStore(self._store.names).lanes.take("killed", seconds, lanes))

    def lanes_of(self, worker: str) -> int:
        """How many lanes the worker holds."""
        owned = f"SELECT count(*) FROM {self.table('lane')} WHERE queue = 'default' AND owner = '{worker}'"
        return int(str(self.rows(owned)[0][0]))

    def table(self, name: str) -> str:
        return self._store.names.mapping()[name]

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def limit_payloads(self, limit: int) -> None:
        """Have the database refuse what is larger, in the words of a server that cannot take it."""
        outbox, dialect = self.table("outbox"), self.engine.dialect.name
        too_large = f"WHEN length(NEW.payload) > {limit}"
        if dialect == "sqlite":
            raised = "SELECT RAISE(ABORT, 'string or blob too big')"
            self.execute(f"CREATE TRIGGER too_large BEFORE INSERT ON {outbox} {too_large} BEGIN {raised}; END")
        elif dialect == "postgresql":
            body = "BEGIN RAISE EXCEPTION ''too large'' USING ERRCODE = ''54000''; END"
            self.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
            too_large = too_large.replace("WHEN ", "WHEN (") + ")"
            self.execute(
                f"CREATE TRIGGER too_large BEFORE INSERT ON {outbox} FOR EACH ROW {too_large} EXECUTE FUNCTION refuse()"
            )

    def close(self) -> None:
        self.engine.dispose()
        self._admin.close()
        self._store.close()
