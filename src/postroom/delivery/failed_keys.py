"""Keys with a failed message: what was read behind it must not overtake it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_READ = 0
"""The number of a batch without keys."""
UNSETTLED: Final = 2**63
"""Stands for a read's number while the failure is not settled: no read can be trusted yet."""


class Mark(NamedTuple):
    """A message of a key failed, or was dropped, at this position."""

    position: int
    known: int
    """The last read that began before the database knew, or the cursor was set back."""


class FailedKeys:
    """Remembers the key of a failed message until everything that was read before the failure was known is done with.

    The database holds back what follows a failed message, but only in reads that begin after the failure was settled.
    So a message behind it that an earlier read returned is dropped, undelivered, and read again. So is what stands
    behind a dropped one: a read may have skipped the dropped one because it was in flight. What stands before is not
    dropped: otherwise each drop would cause the next.
    """

    def __init__(self) -> None:
        self._keys: dict[str, list[Mark]] = {}
        self._reads = 0
        self._outstanding: Counter[int] = Counter()
        """How many parts of each read are not finished: the read itself while it is under way, and its batches."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def next_read(self) -> int:
        """Number a read, before its statement is sent. It must be `finished` once, whatever comes of it."""
        self._reads += 1
        self._outstanding[self._reads] += 1
        return self._reads

    def handed_over(self, read: int) -> None:
        """A batch of this read waits to be attempted; it must be `finished` once."""
        self._outstanding[read] += 1

    def finished(self, read: int) -> None:
        """Nothing more of this batch, or of this read, will be delivered."""
        if read == NO_READ:
            return
        self._outstanding[read] -= 1
        if self._outstanding[read]:
            return
        del self._outstanding[read]
        if self._keys:
            oldest = min(self._outstanding, default=self._reads + 1)
            kept = {key: [mark for mark in marks if mark.known >= oldest] for key, marks in self._keys.items()}
            self._keys = {key: marks for key, marks in kept.items() if marks}

    def fail(self, key: str, position: int) -> None:
        """A message of the key failed or was dropped; that is not settled yet."""
        marks = self._keys.setdefault(key, [])
        unsettled = min((mark.position for mark in marks if mark.known == UNSETTLED), default=position)
        marks[:] = [mark for mark in marks if mark.known != UNSETTLED]
        marks.append(Mark(min(position, unsettled), UNSETTLED))

    def settled(self, keys: Iterable[str]) -> None:
        """All failures of these keys are settled: reads that begin from now on can be trusted."""
        for key in keys:
            if key in self._keys:
                self._keys[key] = [Mark(mark.position, min(mark.known, self._reads)) for mark in self._keys[key]]

    def must_drop(self, key: str | None, position: int, read: int) -> bool:
        """Whether a message of this key that came with this read must not be sent."""
        if key is None or key not in self._keys:
            return False
        return any(mark.position < position and read <= mark.known for mark in self._keys[key])
