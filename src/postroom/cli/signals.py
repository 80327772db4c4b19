"""Stop on SIGTERM or Ctrl-C: the first signal lets what is in flight finish, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """A relay or a consumer."""

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        ...

    def stop(self) -> None:
        """Finish what is in flight, and end."""
        ...


def stop_on_signals(services: Sequence[Stoppable]) -> None:
    """Stop these services of the running loop when a signal comes."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, services, number)


def _stop(services: Sequence[Stoppable], number: signal.Signals) -> None:
    if any(one.stopping for one in services):
        os._exit(128 + number)  # leases end by themselves, and what was received comes again
    for one in services:
        one.stop()


@contextmanager
def stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """For work in batches, without a loop: yields a function that says whether a signal has come."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if came:
            os._exit(128 + number)  # the database undoes the transaction that is open
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
