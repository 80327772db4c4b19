"""Report one error instead of a group: tasks that work together also fail together, and one of them knows why."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def first_error_only() -> Iterator[None]:
    """Replace a group of Postroom's own errors by its first one. A group that holds any other error is raised as is."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours, others = group.split(PostroomError)
        if others is not None or ours is None:
            raise
        raise _first(ours) from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
