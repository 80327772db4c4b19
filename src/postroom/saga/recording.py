"""Writes what belongs to sagas in the caller's transaction, on every kind of connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from postroom.runtime import wakeup
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.message import Message
    from postroom.settings import Settings

T = TypeVar("T")


class Recorder:
    """Runs operations in the transaction that is open on a connection. It never commits."""

    def __init__(self, settings: Settings) -> None:
        """Raises `InvalidIdentifier` for a schema or table prefix that is none."""
        self.notify = settings.notify
        self._place = settings.schema, settings.table_prefix
        self._names: dict[str, Names] = {}
        self._names_for("postgresql")

    def run(self, connection: object, method: str, operation: Callable[[Names], Steps[T]]) -> T:
        """Run an operation, and wake the relays of this process. `method` is the method that was called."""
        kind = sync_kind(connection, method)
        found = run(explained(operation(self._names_for(kind.dialect))), kind.execute)
        wakeup.notify()
        return found

    async def arun(self, connection: object, method: str, operation: Callable[[Names], Steps[T]]) -> T:
        """`run` for an async connection."""
        kind = await async_kind(connection, method)
        found = await arun(explained(operation(self._names_for(kind.dialect))), kind.execute)
        wakeup.notify()
        return found

    def signal(self, message: Message) -> Callable[[Names], Steps[None]]:
        """Add a signal. A repetition of the same one adds nothing."""

        def added(names: Names) -> Steps[None]:
            yield from WRITERS[names.dialect](names, message.topic, notify=self.notify).add([message])

        return added

    def _names_for(self, dialect: str) -> Names:
        if dialect not in self._names:
            self._names[dialect] = Names.of(dialect, *self._place)
        return self._names[dialect]
