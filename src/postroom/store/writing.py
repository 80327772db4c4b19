"""Recording messages: rows for the outbox and their deliveries, in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

import msgspec

from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.store.db_errors import is_duplicate_entry
from postroom.store.dialect import DIALECTS, Dialect, as_json, whole_numbers
from postroom.store.operations import DEFAULT_QUEUE
from postroom.store.steps import Query, Result, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from postroom.message import Message
    from postroom.store.names import Names

MESSAGE_COLUMNS = (
    "id",
    "queue",
    "topic",
    "type",
    "aggregate_type",
    "aggregate_id",
    "ordering_key",
    "payload",
    "content_type",
    "headers",
    "idempotency_key",
    "digest",
    "expires_at",
)
DELIVERY_COLUMNS = ("state", "lane", "key_hash", "due")


class Writer:
    """Writes messages with their deliveries. What differs between databases is how rows are inserted."""

    most_rows: ClassVar[int]
    """Rows of one statement at the most."""
    most_bytes: ClassVar[int] = 4 * 1024 * 1024
    """Payload bytes of one statement at the most, well under every server's packet limit."""

    def __init__(self, names: Names, queue: str = DEFAULT_QUEUE) -> None:
        self.dialect: Dialect = DIALECTS[names.dialect]()
        self.tables = names.mapping()
        self.queue = queue

    def add(self, messages: Sequence[Message]) -> Steps[list[Message]]:
        """Record the messages, in order. Those whose idempotency key is in use come back as what is there already.

        Raises `IdempotencyConflict` or `DuplicateMessage`, and then none of them is recorded.
        """
        repeats = _repeats(messages)
        fresh = [message for message in messages if message.id not in repeats]
        inserted: set[UUID] = set()
        for chunk in self._chunks(fresh):
            inserted |= yield from self._insert(chunk)
        refused = [message for message in fresh if message.id not in inserted]
        try:
            existing = yield from self._existing(refused)
        except (IdempotencyConflict, DuplicateMessage):
            yield from self._take_back([message for message in fresh if message.id in inserted])
            raise
        recorded = {message.id: existing.get(message.id, message) for message in fresh}
        return [
            msgspec.structs.replace(recorded[repeats[message.id]], duplicate=True)
            if message.id in repeats
            else recorded[message.id]
            for message in messages
        ]

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """Insert messages with their deliveries; returns the ids of those that were not refused as duplicates."""
        raise NotImplementedError

    def _chunks(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        chunk: list[Message] = []
        size = 0
        for message in messages:
            if chunk and (len(chunk) >= self.most_rows or size + message.size > self.most_bytes):
                yield chunk
                chunk, size = [], 0
            chunk.append(message)
            size += message.size
        if chunk:
            yield chunk

    def _existing(self, refused: Sequence[Message]) -> Steps[dict[UUID, Message]]:
        """What stands in the way of the refused messages, as the messages to return instead."""
        existing: dict[UUID, Message] = {}
        for chunk in self._chunks(refused):
            keys = {message.idempotency_key for message in chunk} - {None}
            rows = yield from self._select("idempotency_key, id, digest", "idempotency_key", keys)
            found = {key: (identifier, digest) for key, identifier, digest in rows}
            for message in chunk:
                if message.idempotency_key not in found:
                    raise DuplicateMessage(_already_there([message.id]))
                identifier, digest = found[message.idempotency_key]
                if digest != message.digest:
                    raise IdempotencyConflict(_used_otherwise(message, identifier))
                existing[message.id] = msgspec.structs.replace(message, id=UUID(str(identifier)), duplicate=True)
        return existing

    def _take_back(self, messages: Sequence[Message]) -> Steps[None]:
        """Undo what this call inserted, so that a refused batch leaves nothing behind in the transaction."""
        for chunk in self._chunks(messages):
            rows = yield from self._select("id, position", "id", {str(message.id) for message in chunk})
            position_of = {UUID(str(identifier)): position for identifier, position in rows}
            lanes: dict[int, list[int]] = {}
            for message in chunk:
                lanes.setdefault(_lane(message), []).append(position_of[message.id])
            for lane, positions in lanes.items():
                yield Query(
                    f"DELETE FROM {self.tables['delivery']} WHERE state IN (0, 1) AND queue = :queue AND lane = :lane "
                    f"AND position IN ({whole_numbers(positions)})",
                    {"queue": self.queue, "lane": lane},
                )
            everywhere = whole_numbers(list(position_of.values()))
            yield Query(f"DELETE FROM {self.tables['outbox']} WHERE position IN ({everywhere})")

    def _select(self, columns: str, column: str, values: Iterable[str | None]) -> Steps[Sequence[Row]]:
        """Rows of the outbox whose column has one of the values."""
        params = {f"value_{n}": value for n, value in enumerate(values)}
        if not params:
            return []
        result = yield Query(
            f"SELECT {columns} FROM {self.tables['outbox']} WHERE {column} IN {_placeholders(params)}",
            params,
        )
        return result.rows

    def _message_row(self, message: Message) -> tuple[Any, ...]:
        return (
            str(message.id),
            self.queue,
            message.topic,
            message.type,
            message.aggregate_type,
            message.aggregate_id,
            message.key,
            message.payload,
            message.content_type,
            as_json(dict(message.headers)) if message.headers else None,
            message.idempotency_key,
            message.digest,
            self.dialect.moment(message.expires_at),
        )

    def _delivery_row(self, message: Message) -> tuple[Any, ...]:
        return (
            int(Stored.READY if message.deliver_at is None else Stored.SCHEDULED),
            _lane(message),
            None if message.key is None else key_hash(message.key),
            self.dialect.moment(message.deliver_at),
        )


class PostgreSQLWriter(Writer):
    """Both rows in one statement and one round trip, for one message as for thousands."""

    most_rows = 5000
    most_bytes = 32 * 1024 * 1024

    _TYPES: ClassVar[dict[str, str]] = {
        "id": "uuid",
        "payload": "bytea",
        "expires_at": "timestamptz",
        "state": "smallint",
        "lane": "smallint",
        "key_hash": "bigint",
        "due": "timestamptz",
    }

    def __init__(self, names: Names, queue: str = DEFAULT_QUEUE) -> None:
        super().__init__(names, queue)
        columns = (*MESSAGE_COLUMNS, *DELIVERY_COLUMNS)
        arrays = ", ".join(f":{column}::{self._TYPES.get(column, 'text')}[]" for column in columns)
        values = ", ".join(f"{column}::jsonb" if column == "headers" else column for column in MESSAGE_COLUMNS)
        self._statement = f"""
            WITH given AS (
                SELECT * FROM unnest({arrays}) WITH ORDINALITY AS given ({", ".join(columns)}, n)
            ), message AS (
                INSERT INTO {self.tables["outbox"]} ({", ".join(MESSAGE_COLUMNS)})
                SELECT {values} FROM given ORDER BY n
                ON CONFLICT DO NOTHING
                RETURNING id, position
            ), delivery AS (
                INSERT INTO {self.tables["delivery"]} (queue, position, state, lane, key_hash, due)
                SELECT queue, position, state, lane, key_hash, coalesce(due, '-infinity')
                FROM message JOIN given USING (id)
            )
            SELECT id FROM message"""

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        rows = [self._message_row(message) + self._delivery_row(message) for message in chunk]
        columns = [list(column) for column in zip(*rows, strict=True)]
        result = yield Query(self._statement, dict(zip((*MESSAGE_COLUMNS, *DELIVERY_COLUMNS), columns, strict=True)))
        return {UUID(str(identifier)) for [identifier] in result.rows}


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

    def _messages(self, chunk: Sequence[Message], verb: str = "INSERT", suffix: str = "") -> Query:
        params: dict[str, Any] = {}
        for n, message in enumerate(chunk):
            params.update(zip(_numbered(MESSAGE_COLUMNS, n), self._message_row(message), strict=True))
        rows = ", ".join(_placeholders(_numbered(MESSAGE_COLUMNS, n)) for n in range(len(chunk)))
        columns = ", ".join(MESSAGE_COLUMNS)
        return Query(f"{verb} INTO {self.tables['outbox']} ({columns}) VALUES {rows}{suffix}", params)

    def _deliveries(self, messages: Sequence[Message]) -> Query:
        params: dict[str, Any] = {"queue": self.queue}
        rows = []
        for n, message in enumerate(messages):
            names = _numbered(DELIVERY_COLUMNS, n)
            params |= zip(names, self._delivery_row(message), strict=True)
            params[f"id_{n}"] = str(message.id)
            state, lane, hashed, due = (f":{name}" for name in names)
            position = f"(SELECT position FROM {self.tables['outbox']} WHERE id = :id_{n})"
            rows.append(f"(:queue, {position}, {state}, {lane}, {hashed}, coalesce({due}, {self.dialect.never}))")
        return Query(
            f"INSERT INTO {self.tables['delivery']} (queue, position, state, lane, key_hash, due) VALUES {', '.join(rows)}",
            params,
        )


class SQLiteWriter(_TwoStatementWriter):
    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        result = yield self._messages(chunk, suffix=" ON CONFLICT DO NOTHING RETURNING id")
        return {UUID(identifier) for [identifier] in result.rows}


class MySQLWriter(_TwoStatementWriter):
    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        # IGNORE would also let a value that does not fit pass with a warning, so it is used only where it is needed.
        verb = "INSERT IGNORE" if any(message.idempotency_key for message in chunk) else "INSERT"
        try:
            result: Result = yield self._messages(chunk, verb)
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            rows = yield from self._select("id", "id", {str(message.id) for message in chunk})
            raise DuplicateMessage(_already_there(identifier for [identifier] in rows)) from None
        if result.written in (0, len(chunk)):
            return {message.id for message in chunk} if result.written else set()
        last = yield Query("SELECT LAST_INSERT_ID()")
        rows = yield from self._select("id, position", "id", {str(message.id) for message in chunk})
        return {UUID(identifier) for identifier, position in rows if position >= last.rows[0][0]}


WRITERS: dict[str, type[Writer]] = {
    "postgresql": PostgreSQLWriter,
    "sqlite": SQLiteWriter,
    "mysql": MySQLWriter,
}


def _repeats(messages: Sequence[Message]) -> dict[UUID, UUID]:
    """Messages of one call that repeat an earlier one's idempotency key: repeat's id → first one's id."""
    first: dict[str, Message] = {}
    repeats: dict[UUID, UUID] = {}
    seen: set[UUID] = set()
    for message in messages:
        if message.id in seen:
            raise DuplicateMessage(
                f"two messages of one call have the id {message.id}: leave id out to have one made for each"
            )
        seen.add(message.id)
        if message.idempotency_key is None:
            continue
        earlier = first.setdefault(message.idempotency_key, message)
        if earlier is message:
            continue
        if earlier.digest != message.digest:
            raise IdempotencyConflict(
                f"idempotency key {message.idempotency_key!r} is given to two different messages in one call"
            )
        repeats[message.id] = earlier.id
    return repeats


def _lane(message: Message) -> int:
    return NO_LANE if message.key is None else lane_of(key_hash(message.key))


def _already_there(ids: Iterable[object]) -> str:
    names = ", ".join(map(str, ids))
    return f"a message with id {names} is already in the outbox: leave id out to have a new one made"


def _used_otherwise(message: Message, holder: object) -> str:
    return (
        f"idempotency key {message.idempotency_key!r} was used for another message ({holder}): "
        "the same key must come with the same topic, type, key and payload; use a new key for a new message"
    )


def _numbered(names: Iterable[str], n: int) -> list[str]:
    return [f"{name}_{n}" for name in names]


def _placeholders(names: Iterable[str]) -> str:
    return f"({', '.join(f':{name}' for name in names)})"
