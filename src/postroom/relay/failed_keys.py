"""Keys with a failed message: what was read behind it must not be sent before it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_READ = 0
"""The number of a batch without keys."""


class FailedKeys:
    """Remembers a key from the failure of one of its messages until nothing is left that was read before it was known.

    The database keeps back what follows a failed message, but only in reads that begin after the failure was
    settled. So a message of the key that an earlier read brought is dropped unsent, and will be read again.
    """

    def __init__(self) -> None:
        self._keys: dict[str, int | None] = {}
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
            self._keys = {key: known for key, known in self._keys.items() if known is None or known >= oldest}

    def fail(self, key: str) -> None:
        """A message of the key failed; the database does not know yet."""
        self._keys[key] = None

    def settled(self, keys: Iterable[str]) -> None:
        """The database knows: reads that begin from now on can be trusted."""
        for key in keys:
            if key in self._keys:
                self._keys[key] = self._reads

    def must_drop(self, key: str | None, read: int) -> bool:
        """Whether a message of this key that came with this read must not be sent."""
        if key is None or key not in self._keys:
            return False
        known_since = self._keys[key]
        return known_since is None or read <= known_since
