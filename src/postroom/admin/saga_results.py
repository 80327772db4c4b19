"""What acts on sagas return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class SagaTotal:
    """How many sagas a filter matches."""

    total: int
    as_of: datetime
    """The database's time of the count: as a filter's `as_of`, it leaves out what came later."""


@dataclass(frozen=True, slots=True)
class SagaRef:
    """One instance of a saga."""

    name: str
    id: str


@dataclass(frozen=True, slots=True)
class RefusedSaga:
    """A saga that an act left alone, and why."""

    name: str
    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SagaActResult:
    """What an act did. Each saga is in `sagas` or in `refused`."""

    action: Literal["resume", "skip", "abort"]
    sagas: tuple[SagaRef, ...]
    """Those that it was done to, newest first."""
    refused: tuple[RefusedSaga, ...]
    """Those that were selected, and that it could not be done to."""

    @property
    def count(self) -> int:
        """How many it was done to."""
        return len(self.sagas)


@dataclass(frozen=True, slots=True)
class SagaFork:
    """A new saga that has taken over the first steps of an old one."""

    name: str
    id: str
    fork_of: str
    """The id of the old one."""
    kept: tuple[str, ...]
    """The steps that it does not run again."""
