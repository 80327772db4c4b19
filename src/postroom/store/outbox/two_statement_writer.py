"""Record messages where one statement writes one table: SQLite, and what MySQL shares with it."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroom.store.outbox.writer import DELIVERY_COLUMNS, MESSAGE_COLUMNS, Writer
from postroom.store.sql.dialect import listed, text
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


_SENT_DELIVERY = (*DELIVERY_COLUMNS, "id", "queue", "position")
Positions = dict[UUID, int | None]
"""The ids of the messages that were inserted, and their positions where the database returns them."""


class TwoStatementWriter(Writer):
    """Databases where one statement writes one table."""

    most_rows = 1000

    def _insert(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        positions = yield from self._insert_messages(chunk)
        if positions:
            yield self._deliveries([message for message in chunk if message.id in positions], positions)
        return set(positions)

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[Positions]:
        raise NotImplementedError

    def _position(self, n: int, count: int) -> str:
        """The position of one of so many messages that were just inserted, in SQL, by `:position_n` or `:id_n`."""
        raise NotImplementedError

    def _messages(self, chunk: Sequence[Message], suffix: str = "") -> Query:
        params: dict[str, Any] = {}
        for n, message in enumerate(chunk):
            params |= zip(_numbered(MESSAGE_COLUMNS, n), self._message_row(message), strict=True)
        if len(chunk) == 1:
            return Query(self._one_message + suffix, params)
        return Query(self._messages_text(len(chunk)) + suffix, params)

    @cached_property
    def _one_message(self) -> str:
        return self._messages_text(1)

    def _messages_text(self, count: int) -> str:
        rows = (f"({listed(self._placeholder(column, n) for column in MESSAGE_COLUMNS)})" for n in range(count))
        return f"INSERT INTO {self.tables['outbox']} ({listed(MESSAGE_COLUMNS)}) VALUES {listed(rows)}"

    def _placeholder(self, column: str, n: int) -> str:
        return f":{column}_{n}"

    def _deliveries(self, messages: Sequence[Message], positions: Positions) -> Query:
        params: dict[str, Any] = {}
        for n, message in enumerate(messages):
            place = (str(message.id), self.queue_for(message), positions[message.id])
            values = self._delivery_row(message) + place
            params |= zip(_numbered(_SENT_DELIVERY, n), values, strict=True)
        return Query(self._one_delivery if len(messages) == 1 else self._deliveries_text(len(messages)), params)

    @cached_property
    def _one_delivery(self) -> str:
        return self._deliveries_text(1)

    def _deliveries_text(self, count: int) -> str:
        rows = []
        for n in range(count):
            state, lane, hashed, size, due, _, queue, _ = (f":{name}" for name in _numbered(_SENT_DELIVERY, n))
            position = self._position(n, count)
            rows.append(
                f"({queue}, {position}, {state}, {lane}, {hashed}, {size}, coalesce({due}, {self.dialect.never}))"
            )
        columns = "queue, position, state, lane, key_hash, size, due"
        return f"INSERT INTO {self.tables['delivery']} ({columns}) VALUES {listed(rows)}"


class SQLiteWriter(TwoStatementWriter):
    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        """Nothing to do: SQLite has one writer at a time."""
        del messages
        yield from ()

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[Positions]:
        result = yield self._messages(chunk, suffix=" ON CONFLICT DO NOTHING RETURNING id, position")
        return {UUID(text(identifier)): position for identifier, position in result.rows}

    def _position(self, n: int, count: int) -> str:
        del count
        return f":position_{n}"  # not last_insert_rowid(): another task may insert on this connection meanwhile


@lru_cache(maxsize=2 * TwoStatementWriter.most_rows)
def _numbered(names: tuple[str, ...], n: int) -> tuple[str, ...]:
    return tuple(f"{name}_{n}" for name in names)
