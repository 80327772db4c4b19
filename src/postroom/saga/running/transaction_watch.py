"""Watches the statements of a function for one that ends its transaction, at no round trip. For PostgreSQL.

Drivers know after each statement whether a transaction is open. Only a statement that ends one and begins another at
once leaves no trace there: that is told from its text.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from postroom.store.connections.autocommit import is_in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ENDS_AND_BEGINS = re.compile(
    r"(?:^|;)(?:\s|/\*.*?\*/|--[^\n]*\n)*(?:commit|rollback)\b[^;]*(?:\bchain\b|;\s*(?:begin|start)\b)",
    re.IGNORECASE | re.DOTALL,
)


class TransactionWatch:
    """Remembers whether a transaction that was open has ended."""

    def __init__(self, is_open: Callable[[], bool]) -> None:
        """`is_open` asks the driver."""
        self._is_open = is_open
        self._was_open = is_open()
        self.has_ended = False

    def look(self, statement: str = "") -> None:
        """Look whether it is open. `statement`: what is about to run, or has."""
        is_open = self._is_open()
        if (self._was_open and not is_open) or _ENDS_AND_BEGINS.search(statement):
            self.has_ended = True
        self._was_open = self._was_open or is_open

    @contextmanager
    def of_sqlalchemy(self, connection: Any, on_end: Callable[[], None]) -> Iterator[None]:
        """Look before each statement on a `Connection`, with which its driver would begin another transaction.

        `on_end` is called if the last one has ended, be it through the driver's own cursor. Look once more at the end.
        """

        def look(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            self.look(statement)
            if self.has_ended:
                on_end()
            self._was_open = True  # the driver begins one now, if none is open

        event.listen(connection, "before_cursor_execute", look)
        try:
            yield
        finally:
            event.remove(connection, "before_cursor_execute", look)

    @contextmanager
    def of_asyncpg(self, connection: Any) -> Iterator[None]:
        """Look after each statement. asyncpg reports it in the event loop's next turn, before an answer to another."""

        def look(record: Any) -> None:
            self.look(record.query)

        connection.add_query_logger(look)
        try:
            yield
        finally:
            connection.remove_query_logger(look)


def watch_of(connection: Any) -> TransactionWatch | None:
    """A watch for an SQLAlchemy `Connection`; None for other databases and drivers: a savepoint does it there."""
    is_open = is_in_transaction(connection)
    return None if is_open is None else TransactionWatch(is_open)
