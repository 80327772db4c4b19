"""What the publishers have in common: a batch that is out, and what becomes of those without an answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.brokers.port import Outcome, Refused, Unreached
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Failure, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from postroom.message import Message

T = TypeVar("T")

FAREWELL = 2.0
"""Seconds for closing a connection."""
MOST_SHOWN = 255
"""Characters of a topic in an error."""
LEAST_LEFT = 0.2
"""The part of the timeout without which it makes no sense to send."""


class Batch:
    """Collects one outcome for each message; `complete` is awaited until all are there, or nothing more can come."""

    def __init__(self, size: int) -> None:
        self._outcomes: list[Outcome | None] = [None] * size
        self._presumed: dict[int, Outcome] = {}
        self._open = size
        self.size = size
        self._ended = asyncio.Event()
        self.answered = False
        """Whether the broker has said anything at all."""
        self.lost: str | None = None
        """Why no more answers can come."""

    def settle(self, index: int, outcome: Outcome) -> None:
        """The first outcome of a message counts."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._open -= 1
            if not self._open:
                self._ended.set()

    def answer(self, index: int, outcome: Outcome) -> None:
        """An outcome that the broker gave."""
        self.answered = True
        if self._outcomes[index] is None:  # as `settle`, without the call: this is done for every message
            self._outcomes[index] = outcome
            self._open -= 1
            if not self._open:
                self._ended.set()

    def presume(self, index: int, outcome: Outcome) -> None:
        """What became of a message unless the broker says otherwise while there is time."""
        self.answered = True
        self._presumed[index] = outcome

    def lose(self, reason: str) -> None:
        """The connection is gone: those without an answer were not reached."""
        self.lost = reason
        self._ended.set()

    async def complete(self) -> None:
        """Return when every message has its outcome, or no more can come."""
        if self._open:
            await self._ended.wait()

    @property
    def silent(self) -> bool:
        """Whether messages are without an answer, and none came at all."""
        return self._open > 0 and not self.answered

    def outcomes(self, timeout: float) -> Sequence[Outcome]:
        """One for each message; those without an answer were not reached, or have run out of time."""
        if not self._open:
            return [outcome for outcome in self._outcomes if outcome is not None]
        rest = timed_out(timeout) if self.lost is None else Unreached(self.lost)
        presumed = self._presumed if self.lost is None else {}
        return [
            presumed.get(index, rest) if outcome is None else outcome for index, outcome in enumerate(self._outcomes)
        ]


class Leaving:
    """Connections that are being closed. A batch does not wait for them: its answer is due."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close a connection, beside what else goes on."""
        task = asyncio.create_task(_closed(closing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Return when all are closed."""
        await asyncio.gather(*self._tasks)


async def _closed(closing: Coroutine[Any, Any, None]) -> None:
    """A server that has fallen silent does not keep us; nor does what goes wrong now matter to anybody."""
    with suppress(Exception):
        async with asyncio.timeout(FAREWELL):
            await closing


def check_time(name: str, deadline: float, timeout: float) -> None:
    """Raise `BrokerUnavailable` where connecting has left no time for an answer: nothing is tried yet.

    The connection is there for the next batch.
    """
    if deadline - asyncio.get_running_loop().time() < timeout * LEAST_LEFT:
        raise BrokerUnavailable(f"{name}: connecting took nearly all of the {timeout:g} s")


def timed_out(timeout: float) -> Refused:
    """No answer within the time."""
    return Refused(Reason.TIMEOUT, f"no answer within {timeout:g} s")


def sealed(messages: Sequence[Message], batch: Batch, seal: Callable[[int, Message], T | Refused]) -> list[T]:
    """What goes out for each message. One that cannot be brought into the protocol's form is refused by itself."""
    found = []
    for index, message in enumerate(messages):
        try:
            one = seal(index, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's, and none of the others'
            one = unsendable(error)
        if isinstance(one, Refused):
            batch.settle(index, one)
        else:
            found.append(one)
    return found


def unsendable(error: Exception) -> Refused:
    """A message whose headers or attributes no protocol can hold: no retry mends it."""
    return invalid_header(f"it cannot be brought into the broker's form: {type(error).__name__}: {error}")


def invalid_header(problem: str) -> Refused:
    """A header, or what becomes one, that the broker cannot carry."""
    return Refused(Reason.INVALID_HEADER, problem, Failure.PERMANENT)


def too_large(size: int, limit: int) -> Refused:
    """More than the broker takes: no retry mends it."""
    problem = f"{size} bytes with headers; the broker takes {limit}"
    return Refused(Reason.MESSAGE_TOO_LARGE, problem, Failure.PERMANENT)


def invalid_target(topic: str, problem: str) -> Refused:
    """A topic that the broker cannot have, or that is its own."""
    return Refused(Reason.INVALID_TARGET, f"topic {topic[:MOST_SHOWN]!r} {problem}", Failure.PERMANENT)
