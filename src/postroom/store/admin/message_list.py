"""List messages, without their payloads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from postroom.rules.lifecycle import State
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import Operations
from postroom.store.sql.rows import shown
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroom.message import Key


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A row of the view `outbox_status`."""

    position: int
    id: str | None
    queue: str
    topic: str | None
    type: str | None
    key: str | None
    status: State | None
    """None for half a message: one without a delivery, which no relay will find."""
    attempts: int
    due: datetime | None
    owner: str | None
    leased_until: datetime | None
    error_code: str | None
    error_message: str | None
    created_at: datetime | None
    sent_at: datetime | None


COLUMNS = tuple(field.name for field in fields(ListedMessage))
"""The columns of the view `outbox_status`."""
MOMENTS = ("due", "leased_until", "created_at", "sent_at")


class MessageList(Operations):
    """Messages of all queues, sent or not."""

    def listed(
        self,
        state: State | None = None,
        *,
        queue: str | None = None,
        topic: str | None = None,
        key: Key | None = None,
        limit: int = 50,
        before: int | None = None,
    ) -> Steps[list[ListedMessage]]:
        """Messages that match all that is given, newest first, from before a position on.

        Half a message, which has neither a state nor a queue, is listed where neither is asked for.
        """
        given = {"status": state, "queue": queue, "topic": topic, "key": key}
        params: dict[str, Any] = {name: str(value) for name, value in given.items() if value is not None}
        params |= {"limit": limit, "before": before if before is not None else 2**63 - 1}
        if state is not None or queue is not None:
            chosen = "".join(f"{self.names.quoted(name)} = :{name} AND " for name in given if name in params)
            return (yield from self._rows(f"{chosen}position < :before", params))
        return (yield from self._all(params))

    def _all(self, params: dict[str, Any]) -> Steps[list[ListedMessage]]:
        """Page through the messages themselves: the view does not have those of which only half was written."""
        columns = {"topic": "topic", "key": "ordering_key"}
        chosen = "".join(f"{column} = :{name} AND " for name, column in columns.items() if name in params)
        page = yield Query(
            f"SELECT position FROM {self.outbox} WHERE {chosen}position < :before ORDER BY position DESC LIMIT :limit",
            params,
        )
        positions = [position for [position] in page.rows]
        listed = yield from self._rows(f"position IN ({whole_numbers(positions)})", params)
        if halves := set(positions) - {row.position for row in listed}:
            listed += yield from self._halves(sorted(halves))
        return sorted(listed, key=lambda row: row.position, reverse=True)

    def _rows(self, condition: str, params: dict[str, Any]) -> Steps[list[ListedMessage]]:
        columns = ", ".join(
            self.dialect.readable(name) if name in MOMENTS else self.names.quoted(name) for name in COLUMNS
        )
        found = yield Query(
            f"SELECT {columns} FROM {self.tables['status_view']} WHERE {condition} ORDER BY position DESC LIMIT :limit",
            params,
        )
        return [self._listed(row) for row in found.rows]

    def _halves(self, positions: Sequence[int]) -> Steps[list[ListedMessage]]:
        """Messages of which a program in plain SQL wrote only half: they have no state."""
        values = {name: name for name in ("position", "id", "queue", "topic", "type")}
        values |= {"key": "ordering_key", "attempts": "0", "created_at": self.dialect.readable("created_at")}
        found = yield Query(
            f"SELECT {', '.join(values.get(name, 'NULL') for name in COLUMNS)} FROM {self.outbox} "
            f"WHERE position IN ({whole_numbers(positions)})"
        )
        return [self._listed(row) for row in found.rows]

    def _listed(self, row: Row) -> ListedMessage:
        values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
        values |= {name: shown(values[name]) for name in ("id", "topic", "type", "key")}
        values |= {name: self.dialect.read_moment(values[name]) for name in MOMENTS}
        values["status"] = None if values["status"] is None else State(values["status"])
        return ListedMessage(**values)
