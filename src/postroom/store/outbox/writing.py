"""The writers: how each database records messages and their deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from postroom.errors import InvalidSetting
from postroom.rules.ordering import key_hash
from postroom.store.outbox.writer import DELIVERY_COLUMNS, MESSAGE_COLUMNS, Writer, listed, text
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.names import LANES, ROWS, channel
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from postroom.message import Message
    from postroom.store.sql.names import Names

__all__ = ["WRITERS", "Writer"]


# A transaction has its number before its first position: so a relay can tell when no lower position can come any more.
# Else one that waits for another with the same idempotency key would hold a position, and have no number yet.
STARTED = "started AS MATERIALIZED (SELECT pg_current_xact_id())"


class PostgreSQLWriter(Writer):
    """Both rows in one statement and one round trip; arrays, which cost a driver more, only for several messages.

    Ids, moments and headers travel as text, so that the codecs which an application sets on its connection do no harm.
    """

    most_rows = 5000
    most_bytes = 32 * 1024 * 1024
    id_as_text = "id::text"
    text_as_id = "::text::uuid"

    _COLUMNS = (*MESSAGE_COLUMNS, *DELIVERY_COLUMNS)
    _SENT_AS: ClassVar[dict[str, str]] = {
        "payload": "bytea",
        "state": "smallint",
        "lane": "smallint",
        "key_hash": "bigint",
        "size": "integer",
    }
    _STORED_AS: ClassVar[dict[str, str]] = {
        "id": "::uuid",
        "headers": "::jsonb",
        "expires_at": "::timestamptz",
        "due": "::timestamptz",
    }

    def __init__(
        self,
        names: Names,
        queue: str = DEFAULT_QUEUE,
        *,
        notify: bool = False,
        queue_of: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(names, queue, notify=notify, queue_of=queue_of)
        # Within the statement, and so without a round trip; the same again in a transaction is sent once.
        one = {column: f":{column}::{self._sent_as(column)}{self._stored_as(column)}" for column in self._COLUMNS}
        one_channel = None if queue_of else channel(names, queue)
        told = _told(one_channel, f"CASE WHEN {one['lane']} < 0 THEN '{ROWS}' ELSE '{LANES}' END", notify)
        told_all = _told(one_channel, "''", notify)
        many = listed(f":{column}::{self._sent_as(column)}[]" for column in self._COLUMNS)
        given = listed(f"{column}{self._stored_as(column)} AS {column}" for column in self._COLUMNS)
        columns = listed(MESSAGE_COLUMNS)
        self._one = f"""
            WITH {STARTED}, message AS (
                INSERT INTO {self.tables["outbox"]} ({columns})
                SELECT {listed(one[column] for column in MESSAGE_COLUMNS)} FROM started
                ON CONFLICT DO NOTHING
                RETURNING id, queue, position
            ), delivery AS (
                INSERT INTO {self.tables["delivery"]} (queue, position, state, lane, key_hash, size, due)
                SELECT queue, position, {one["state"]}, {one["lane"]}, {one["key_hash"]}, {one["size"]},
                    coalesce({one["due"]}, '-infinity')
                FROM message
            )
            SELECT {self.id_as_text} FROM message{told}"""
        self._many = f"""
            WITH {STARTED}, given AS MATERIALIZED (
                SELECT {given}, n
                FROM unnest({many}) WITH ORDINALITY AS sent ({listed(self._COLUMNS)}, n)
            ), message AS (
                INSERT INTO {self.tables["outbox"]} ({columns})
                SELECT {columns} FROM given CROSS JOIN started ORDER BY n
                ON CONFLICT DO NOTHING
                RETURNING id, position
            ), delivery AS (
                INSERT INTO {self.tables["delivery"]} (queue, position, state, lane, key_hash, size, due)
                SELECT queue, position, state, lane, key_hash, size, coalesce(due, '-infinity')
                FROM message JOIN given USING (id)
            )
            SELECT {self.id_as_text} FROM message{told_all}"""

    def _sent_as(self, column: str) -> str:
        return self._SENT_AS.get(column, "text")

    def _stored_as(self, column: str) -> str:
        return self._STORED_AS.get(column, "")

    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        hashes = sorted({key_hash(message.key) for message in messages if message.key is not None})
        if hashes:
            yield Query("SELECT pg_advisory_xact_lock(hash) FROM unnest(:hashes::bigint[]) AS hash", {"hashes": hashes})

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        rows = [self._message_row(message) + self._delivery_row(message) for message in chunk]
        channels = self._channels(chunk)
        if len(rows) == 1:
            result = yield Query(self._one, dict(zip(self._COLUMNS, rows[0], strict=True)) | channels)
        else:
            columns = map(list, zip(*rows, strict=True))
            result = yield Query(self._many, dict(zip(self._COLUMNS, columns, strict=True)) | channels)
        return {UUID(identifier) for [identifier] in result.rows}

    def _channels(self, messages: Sequence[Message]) -> dict[str, list[str]]:
        """On which channels to say that there is something, where the statement does not know it."""
        if not self.notify or self._queue_of is None:
            return {}
        return {"channels": sorted({channel(self.names, self.queue_for(message)) for message in messages})}

    def _moment(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.isoformat()


class _TwoStatementWriter(Writer):
    """Databases where one statement writes one table."""

    most_rows = 1000

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        inserted = yield from self._insert_messages(chunk)
        written = [message for message in chunk if message.id in inserted]
        if written:
            yield self._deliveries(written)
        return inserted

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        raise NotImplementedError

    def _messages(self, chunk: Sequence[Message], suffix: str = "") -> Query:
        params: dict[str, Any] = {}
        for n, message in enumerate(chunk):
            params |= zip(_numbered(MESSAGE_COLUMNS, n), self._message_row(message), strict=True)
        rows = (f"({listed(self._placeholder(column, n) for column in MESSAGE_COLUMNS)})" for n in range(len(chunk)))
        columns = listed(MESSAGE_COLUMNS)
        return Query(f"INSERT INTO {self.tables['outbox']} ({columns}) VALUES {listed(rows)}{suffix}", params)

    def _placeholder(self, column: str, n: int) -> str:
        return f":{column}_{n}"

    def _deliveries(self, messages: Sequence[Message]) -> Query:
        params: dict[str, Any] = {}
        rows = []
        for n, message in enumerate(messages):
            names = _numbered(DELIVERY_COLUMNS, n)
            params |= zip(names, self._delivery_row(message), strict=True)
            params |= {f"id_{n}": str(message.id), f"queue_{n}": self.queue_for(message)}
            state, lane, hashed, size, due = (f":{name}" for name in names)
            position = f"(SELECT position FROM {self.tables['outbox']} WHERE id = :id_{n})"
            rows.append(
                f"(:queue_{n}, {position}, {state}, {lane}, {hashed}, {size}, coalesce({due}, {self.dialect.never}))"
            )
        columns = "queue, position, state, lane, key_hash, size, due"
        return Query(f"INSERT INTO {self.tables['delivery']} ({columns}) VALUES {listed(rows)}", params)


class SQLiteWriter(_TwoStatementWriter):
    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        """Nothing to do: SQLite has one writer at a time."""
        del messages
        yield from ()

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        result = yield self._messages(chunk, suffix=" ON CONFLICT DO NOTHING RETURNING id")
        return {UUID(text(identifier)) for [identifier] in result.rows}


class MySQLWriter(_TwoStatementWriter):
    """INSERT IGNORE would let a value that does not fit pass too, and makes async drivers warn of every duplicate."""

    current = " LOCK IN SHARE MODE"
    savepoints = True  # who may add need not be allowed to delete

    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        del messages
        raise InvalidSetting(
            "lock_keys is not available on MySQL and MariaDB, which have no lock that ends with the transaction: "
            "lock the row that the key stands for with SELECT … FOR UPDATE before you add"
        )

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """A duplicate undoes its statement alone: without what is there already, the rest is inserted again."""
        while chunk:
            try:
                yield self._messages(chunk)
                return {message.id for message in chunk}
            except Exception as error:
                if not is_duplicate_entry(error):
                    raise
                known = yield from self._known(chunk)
                if not known:
                    raise
            chunk = [message for message in chunk if message.id not in known]
        return set()

    def _known(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """Those whose id or idempotency key is in the outbox. The read that locks gaps too is left for the last."""
        ids = {str(message.id): message.id for message in chunk}
        keys = {message.idempotency_key: message.id for message in chunk if message.idempotency_key is not None}
        for suffix in ("", self.current):
            same_key = yield from self._select("idempotency_key", "idempotency_key", keys, suffix)
            same_id = yield from self._select("id", "id", ids, suffix)
            known = {keys[text(key)] for [key] in same_key} | {ids[text(identifier)] for [identifier] in same_id}
            if known:
                return known
        return set()

    def _payload(self, payload: bytes | None) -> str | None:
        # In hexadecimal: drivers differ in how they write bytes into a statement, and one in how it fails at it.
        return None if payload is None else payload.hex()

    def _placeholder(self, column: str, n: int) -> str:
        placeholder = super()._placeholder(column, n)
        return f"unhex({placeholder})" if column == "payload" else placeholder


WRITERS: dict[str, type[Writer]] = {
    "postgresql": PostgreSQLWriter,
    "sqlite": SQLiteWriter,
    "mysql": MySQLWriter,
}


def _told(channel: str | None, what: str, notify: bool) -> str:  # noqa: FBT001 - the setting, handed on
    """What makes a statement tell the listeners, with a word for what there is to do, or none for everything."""
    if not notify:
        return ""
    if channel is not None:
        return f" WHERE (SELECT pg_notify('{channel}', {what})) IS NOT NULL"
    return f" WHERE (SELECT count(pg_notify(told, {what})) FROM unnest(:channels::text[]) AS told) IS NOT NULL"


def _numbered(names: Iterable[str], n: int) -> list[str]:
    return [f"{name}_{n}" for name in names]
