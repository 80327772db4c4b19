"""`AsyncObserving`: `Observing` for async code."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from postroom.admin.observing_steps import ObservingSteps
    from postroom.store.admin.overview import Overview
    from postroom.store.sql.steps import Steps

T = TypeVar("T")


class AsyncObserving:
    """Reads that cost the same however many messages there are."""

    def __init__(self, steps: ObservingSteps) -> None:
        self._observing = steps

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def overview(self) -> Overview:
        """`Admin.overview`."""
        return await self._run(self._observing.overview())
