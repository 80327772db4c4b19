"""Writes what belongs to sagas in the caller's transaction, on every kind of connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from postroom.errors import IdempotencyConflict, SagaNotFound, SagaSettled
from postroom.rules.naming import SAGA_ID, SAGA_QUEUE
from postroom.runtime import wakeup
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.outbox.writers import WRITERS
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Aborted
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.message import Message
    from postroom.settings import Settings

T = TypeVar("T")
_WHY_NOT = {
    Aborted.ENDED: "it has ended",
    Aborted.LOST: "its delivery was deleted: restore it first, with `postroom sagas resume`",
    Aborted.ALREADY_BACK: "it is already being compensated",
    Aborted.PAST_PIVOT: "it has passed its pivot, or may have, and only goes forward",
}


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

    def start(self, message: Message, deadline: float | None) -> Callable[[Names], Steps[str]]:
        """Add an instance, and return its id. Raises `IdempotencyConflict`."""
        name, id = message.topic.removeprefix(SAGA_QUEUE), message.headers[SAGA_ID]  # noqa: A001 - as in `start`

        def added(names: Names) -> Steps[str]:
            try:
                yield from SagaStore(names, name, notify=self.notify).start(message, deadline)
            except IdempotencyConflict:
                raise IdempotencyConflict(
                    f"saga {name!r} was started with other data under the id {id!r}: the same id must come with the "
                    "same data; use another id for another instance"
                ) from None
            return id

        return added

    def abort(self, name: str, id: str, by: str, reason: str) -> Callable[[Names], Steps[None]]:
        """Turn an instance back. Raises `SagaNotFound` or `SagaSettled`."""

        def aborted(names: Names) -> Steps[None]:
            outcome = yield from SagaStore(names, name, notify=self.notify).abort(id, by, reason)
            if outcome is Aborted.UNKNOWN:
                raise SagaNotFound(
                    f"there is no saga {name!r} with the id {id!r}, or it has been removed since its end"
                )
            if outcome is not Aborted.ABORTED:
                raise SagaSettled(f"saga {name!r} with the id {id!r} cannot be aborted: {_WHY_NOT[outcome]}")

        return aborted

    def signal(self, message: Message) -> Callable[[Names], Steps[None]]:
        """Add a signal. A repetition of the same one adds nothing."""

        def added(names: Names) -> Steps[None]:
            yield from WRITERS[names.dialect](names, message.topic, notify=self.notify).add([message])

        return added

    def _names_for(self, dialect: str) -> Names:
        if dialect not in self._names:
            self._names[dialect] = Names.of(dialect, *self._place)
        return self._names[dialect]
