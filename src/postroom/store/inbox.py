"""Inbox marks: a unique row, written in the same transaction as the effect of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.saga_plan import Direction
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.dialect import listed, text
from postroom.store.sql.operations import chunks
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroom.rules.saga_calls import Call
    from postroom.store.sql.names import Names


class Marker:
    """Writes inbox marks on PostgreSQL and SQLite, where inserting an existing mark is no error."""

    def __init__(self, names: Names) -> None:
        inbox = names.mapping()["inbox"]
        self._insert = f"INSERT INTO {inbox} (consumer, message_id) VALUES"
        self._select = f"SELECT 1 FROM {inbox} WHERE consumer = :consumer AND message_id = :id"

    def mark(self, consumer: str, message_id: str) -> Steps[bool]:
        """Write the mark. Returns False if it existed."""
        return bool((yield from self.mark_many(consumer, [message_id])))

    def mark_many(self, consumer: str, message_ids: Collection[str]) -> Steps[set[str]]:
        """Write the marks; returns those that did not exist.

        In the order of the ids, so that two transactions that mark the same ones do not wait for each other in turn.
        """
        fresh: set[str] = set()
        for chunk in chunks(sorted(set(message_ids))):
            params = {f"id_{n}": message_id for n, message_id in enumerate(chunk)}
            rows = listed(f"(:consumer, :{name})" for name in params)
            result = yield Query(
                f"{self._insert} {rows} ON CONFLICT DO NOTHING RETURNING message_id", {"consumer": consumer, **params}
            )
            fresh |= {text(message_id) for [message_id] in result.rows}
        return fresh

    def pass_barrier(self, consumer: str, call: Call) -> Steps[bool]:
        """Whether to run a saga's call: the first do that no undo has overtaken, the first undo of what was done.

        An undo also marks the do, so that one that comes later is not run any more.
        """
        if call.direction is Direction.FORWARD:
            return (yield from self.mark(consumer, call.done))
        fresh = yield from self.mark_many(consumer, [call.done, call.undone])
        return call.done not in fresh and call.undone in fresh

    def is_marked(self, consumer: str, message_id: str) -> Steps[bool]:
        """Whether the mark exists, as the transaction sees it."""
        found = yield Query(self._select, {"consumer": consumer, "id": message_id})
        return bool(found.rows)


class MySQLMarker(Marker):
    """INSERT IGNORE would hide other errors too. A duplicate undoes only its own statement, so it can be caught."""

    def mark_many(self, consumer: str, message_ids: Collection[str]) -> Steps[set[str]]:
        fresh: set[str] = set()
        for message_id in sorted(set(message_ids)):
            try:
                yield Query(f"{self._insert} (:consumer, :id_0)", {"consumer": consumer, "id_0": message_id})
                fresh.add(message_id)
            except Exception as error:
                if not is_duplicate_entry(error):
                    raise
        return fresh


MARKERS: dict[str, type[Marker]] = {"postgresql": Marker, "sqlite": Marker, "mysql": MySQLMarker}
