"""Keys with a failed message: what was read behind it must not be sent before it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_READ = 0
"""The number of a batch without keys."""
UNSETTLED: Final = 2**63
"""In place of a read's number: none can be trusted yet."""


class Mark(NamedTuple):
    """A message of a key failed, or was dropped, at this position."""

    position: int
    known: int
    """The last read that began before the database, or the cursor, knew of it."""


class FailedKeys:
    """Remembers a key from the failure of one of its messages until nothing is left that was read before it was known.

    The database keeps back what follows a failed message, but only in reads that begin after the failure was
    settled. So a message behind it that an earlier read brought is dropped unsent, and will be read again. So is what
    stands behind a dropped one: a read may have passed that by, because it was in flight. But not what stands before:
    otherwise each drop would be the reason of the next.
    """

    def __init__(self) -> None:
        self._keys: dict[str, list[Mark]] = {}
        self._reads = 0
        self._outstanding: Counter[int] = Counter()
        """Reads that are under way, and batches of theirs that are not carried yet."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def next_read(self) -> int:
        """Number a read, before its statement is sent. It must be `carried` once, whatever comes of it."""
        self._reads += 1
        self._outstanding[self._reads] += 1
        return self._reads

    def handed_over(self, read: int) -> None:
        """A batch of this read is on its way to a courier, who must say when it is `carried`."""
        self._outstanding[read] += 1

    def carried(self, read: int) -> None:
        """Nothing of this batch, or of this read, can be sent any more."""
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
