"""Wake-up: an outbox tells the relays of its own process that something was added.

It comes before the commit, which the outbox never sees; so a relay that is woken looks at once, and then again and
again, at first quickly. So a message leaves at the latest when its transaction has taken as long again after the commit
as from `add` to the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

Bell = Callable[[], None]

_bells: list[Bell] = []
_lock = Lock()


def listen(bell: Bell) -> None:
    """Have a function called whenever something is added, from the thread that adds."""
    with _lock:
        _bells.append(bell)


def ignore(bell: Bell) -> None:
    """Do not call it any more."""
    with _lock:
        _bells.remove(bell)


def ring() -> None:
    """Something was added."""
    if _bells:
        for bell in tuple(_bells):
            bell()
