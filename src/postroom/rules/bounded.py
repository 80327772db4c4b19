"""Counts that stop at a limit, so that they cost the same on ten rows and on ten million."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """How many there are; if there are `more` than the limit, the limit."""

    value: int = 0
    more: bool = False

    @classmethod
    def of(cls, found: int, limit: int) -> BoundedCount:
        """Of a count that looked for one more than the limit."""
        return cls(min(found, limit), found > limit)

    @classmethod
    def sum(cls, counts: Iterable[BoundedCount]) -> BoundedCount:
        """All together: there are more if there are more of one."""
        parts = list(counts)
        return cls(sum(part.value for part in parts), any(part.more for part in parts))

    def __int__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value > 0 or self.more

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.more else ''}"
