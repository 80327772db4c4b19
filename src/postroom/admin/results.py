"""What lists and acts return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from uuid import UUID

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. Iterate over it for its items."""

    items: tuple[T, ...]
    next: int | None
    """Give it as `before` for the next page; None on the last one."""
    as_of: datetime
    """The database's time when the page was read. In a filter, it leaves out what came later."""
    looked_at: int | None = None
    """How many rows the search looked at, if it ended before the page was full: there may be more from `next` on."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Refusal(StrEnum):
    """What a message is that an act left alone."""

    PENDING = "pending"
    SENDING = "sending"
    WAITING = "waiting"
    SENT = "sent"
    DEAD = "dead"
    EXPIRED = "expired"
    INCOMPLETE = "incomplete"
    """Half a message: it has no delivery."""
    IN_STREAM = "in the stream"
    """It is on its way to the relay that reads the write-ahead log: it cannot be stopped."""
    SAGA = "a saga"
    """It is not removed, which would break it: see `Admin.abort_saga` and `Admin.skip_saga_step`."""
    NOT_FOUND = "not there"


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that an act left alone, and what it is."""

    id: UUID
    status: Refusal


@dataclass(frozen=True, slots=True)
class ActResult:
    """What an act did. Each message is in `ids` or in `refused`."""

    action: Literal["requeue", "discard", "cancel"]
    count: int
    """Messages that it was done to, those included whose id cannot be read."""
    ids: tuple[UUID, ...]
    """The messages that it was done to, in their order."""
    refused: tuple[Refused, ...]
    """Messages of the given ids that it was not done to; what `cancel` found being sent; and sagas."""
