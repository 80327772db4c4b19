"""Keys with a failed message: what was read behind it must not be sent before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class FailedKeys:
    """Remembers a key from the failure of one of its messages until the database knows, and what was read by then.

    The database keeps back what follows a failed message, but only in reads that begin after the failure was
    settled. So a message of the key that an earlier read brought is dropped unsent, and will be read again.
    """

    def __init__(self) -> None:
        self._keys: dict[str, int | None] = {}
        self.reads = 0
        """How many reads have begun."""

    def next_read(self) -> int:
        """Number a read, before its statement is sent."""
        self.reads += 1
        return self.reads

    def fail(self, key: str) -> None:
        """A message of the key failed; the database does not know yet."""
        self._keys[key] = None

    def settled(self, keys: Iterable[str]) -> None:
        """The database knows: reads that begin from now on can be trusted."""
        for key in keys:
            if key in self._keys:
                self._keys[key] = self.reads

    def must_drop(self, key: str | None, read: int) -> bool:
        """Whether a message of this key that came with this read must not be sent."""
        if key is None or key not in self._keys:
            return False
        trusted_after = self._keys[key]
        if trusted_after is None or read <= trusted_after:
            return True
        del self._keys[key]
        return False
