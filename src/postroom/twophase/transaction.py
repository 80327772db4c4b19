"""One transaction: a context manager, sync or async, around the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from postroom.errors import InvalidSetting
from postroom.twophase.rounds import adrive, drive

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from postroom.twophase.coordinator import Coordinator
    from postroom.twophase.parts import Participant


class Transaction:
    """Work on several participants, which commits everywhere or nowhere.

    ``transaction["bank"]`` is the connection to work on. Leave its end to the block: at its end, all participants
    commit; if it raises, all roll back, and the exception goes on. Used once, from one thread or task.
    """

    def __init__(self, coordinator: Callable[[bool], Coordinator]) -> None:
        """`coordinator` makes the one for a sync (False) or an async (True) transaction."""
        self._make = coordinator
        self._coordinator: Coordinator | None = None
        self._is_open = False

    @property
    def id(self) -> str:
        """What identifies it in `postroom transactions`; empty for one with a single database, which needs no log."""
        return "" if self._coordinator is None else self._coordinator.log.id

    @property
    def unsettled(self) -> tuple[str, ...]:
        """After the block: participants that have not confirmed the commit yet. Recovery finishes them."""
        return () if self._coordinator is None else self._coordinator.unsettled

    def __getitem__(self, participant: str) -> Any:
        return self._participant(participant).given

    def branch_id(self, participant: str) -> str:
        """What an own resource is called with, so that it knows which work to prepare; empty for the log's holder."""
        return self._participant(participant).branch

    def _participant(self, name: str) -> Participant:
        if self._coordinator is None or not self._is_open:
            raise InvalidSetting(f"participant {name!r} has no connection: work on it inside the `with` block")
        return self._coordinator.participant(name)

    def __enter__(self) -> Self:
        coordinator = self._begin(asynchronous=False)
        drive(coordinator.beginning())
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self._ending(failed=kind is not None))

    async def __aenter__(self) -> Self:
        coordinator = self._begin(asynchronous=True)
        await adrive(coordinator.beginning(), interruptible=True)
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await adrive(self._ending(failed=kind is not None))

    def _begin(self, *, asynchronous: bool) -> Coordinator:
        if self._coordinator is not None:
            raise InvalidSetting("a transaction is used once: call begin() for each")
        self._coordinator = self._make(asynchronous)
        return self._coordinator

    def _ending(self, *, failed: bool) -> Any:
        coordinator = self._coordinator
        if coordinator is None:
            raise InvalidSetting("the transaction was not entered: use `with` or `async with`")
        self._is_open = False
        return coordinator.aborting() if failed else coordinator.committing()
