"""Wake-up: an outbox wakes the relays of its own process when a message is added.

The signal comes from `add`, before the commit, which the outbox never sees. So a relay that is woken polls at once and
then again at growing intervals. At the latest, a message leaves when as much time has passed after its commit as
between `add` and the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

Callback = Callable[[], None]

_callbacks: list[Callback] = []
_lock = Lock()


def subscribe(callback: Callback) -> None:
    """Call `callback` whenever a message is added, in the thread that adds it."""
    with _lock:
        _callbacks.append(callback)


def unsubscribe(callback: Callback) -> None:
    """Stop calling it."""
    with _lock:
        _callbacks.remove(callback)


def notify() -> None:
    """Tell all subscribers that a message was added."""
    if _callbacks:
        for callback in tuple(_callbacks):
            callback()
