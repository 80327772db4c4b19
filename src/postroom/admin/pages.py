"""Lists come in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from postroom.admin.results import Page
from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from postroom.store.admin.newest_first import Found

T = TypeVar("T")


def one_more(limit: int) -> int:
    """What to read for a page: one row more than it has tells whether another page follows."""
    if limit < 1:
        raise InvalidSetting(f"limit = {limit!r} is not valid: give 1 or more")
    return limit + 1


def page_found(items: Sequence[T], found: Found, as_of: datetime) -> Page[T]:
    """The page of a search that has a limit."""
    return Page(tuple(items), found.next, as_of, found.looked_at if found.next is not None else None)


def page_of(rows: Sequence[T], limit: int, as_of: datetime, cursor: Callable[[T], int]) -> Page[T]:
    """The page of what was read."""
    items = tuple(rows[:limit])
    return Page(items, cursor(items[-1]) if len(rows) > limit else None, as_of)
