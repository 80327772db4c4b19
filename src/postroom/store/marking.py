"""Marks: a unique row written in the same transaction as the effect it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.db_errors import is_duplicate_entry
from postroom.store.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.names import Names


class Marker:
    """Writes inbox marks on PostgreSQL and SQLite, where a mark that is there already is no error."""

    def __init__(self, names: Names) -> None:
        self._insert = f"INSERT INTO {names.mapping()['inbox']} (consumer, message_id) VALUES (:consumer, :message_id)"

    def mark(self, consumer: str, message_id: str) -> Steps[bool]:
        """Write the mark. False if it was there."""
        query = Query(
            f"{self._insert} ON CONFLICT DO NOTHING RETURNING 1", {"consumer": consumer, "message_id": message_id}
        )
        result = yield query
        return bool(result.rows)


class MySQLMarker(Marker):
    """INSERT IGNORE would hide other errors too; a duplicate undoes only its own statement, so it can be caught."""

    def mark(self, consumer: str, message_id: str) -> Steps[bool]:
        try:
            yield Query(self._insert, {"consumer": consumer, "message_id": message_id})
        except Exception as error:
            if is_duplicate_entry(error):
                return False
            raise
        return True


MARKERS: dict[str, type[Marker]] = {"postgresql": Marker, "sqlite": Marker, "mysql": MySQLMarker}
