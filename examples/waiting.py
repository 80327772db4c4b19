"""Wait for a condition, but not for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from examples.shutdown import signals_deferred

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60.0
POLL = 0.05


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; exit with an error after a minute."""
    deadline = time.monotonic() + TIMEOUT
    while not _holds(condition):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {TIMEOUT:.0f} seconds in vain until {what}")
        time.sleep(POLL)


def _holds(condition: Callable[[], object]) -> bool:
    """Check with signals deferred: Python ignores an exception that a signal raises inside a destructor."""
    with signals_deferred():
        return bool(condition())
