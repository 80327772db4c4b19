"""Record messages where one statement writes one table: SQLite, and what MySQL shares with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroom.store.outbox.writer import DELIVERY_COLUMNS, MESSAGE_COLUMNS, Writer
from postroom.store.sql.dialect import listed, text
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.message import Message


class TwoStatementWriter(Writer):
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


class SQLiteWriter(TwoStatementWriter):
    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        """Nothing to do: SQLite has one writer at a time."""
        del messages
        yield from ()

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        result = yield self._messages(chunk, suffix=" ON CONFLICT DO NOTHING RETURNING id")
        return {UUID(text(identifier)) for [identifier] in result.rows}


def _numbered(names: Iterable[str], n: int) -> list[str]:
    return [f"{name}_{n}" for name in names]
