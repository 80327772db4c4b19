"""`Observing`: the part of `Admin` that a dashboard reads again and again, at a bounded cost."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from postroom.admin.observing_steps import ObservingSteps
    from postroom.store.admin.overview import Overview
    from postroom.store.sql.steps import Steps

T = TypeVar("T")


class Observing:
    """Reads that cost the same however many messages there are."""

    def __init__(self, steps: ObservingSteps) -> None:
        self._observing = steps

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def overview(self) -> Overview:
        """How much is unsent in each queue, who works on it, and what is held up. Counts stop at 10,000.

        It reads the beginning of indexes, so it suits a page that is loaded again and again.
        """
        return self._run(self._observing.overview())
