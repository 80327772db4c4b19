"""One reason out of many: parts that work together end together, and one of them knows why."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def one_reason() -> Iterator[None]:
    """Raise the first of a group of our own errors by itself; a group with others in it stays as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PostroomError)
        if others is not None or ours is None:
            raise
        raise _first(ours) from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
