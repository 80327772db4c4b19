"""Publish through a client that blocks: in threads, with a line each, and never longer than the time limit."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.brokers.connecting import CLOSE_TIMEOUT
from postroom.brokers.port import NOT_SENT, Capabilities, Outcome, Refused, Unreached
from postroom.brokers.refusals import timed_out
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason
from postroom.rules.ordering import places_by_key
from postroom.runtime.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.message import Message

THREADS = 8
LINES = 4
"""The most for one batch. Each message's answer is awaited before the next is sent, so that more lines send faster."""
WORTH_A_LINE = 16
"""So many messages of a batch."""
START_SHARE = 0.5
"""The share of the timeout in which messages may be started; the rest is for the last one's answer."""


class BlockingBroker:
    """A broker whose client blocks. Subclasses connect, send one message, and close.

    A publish has one or more threads, each with a line of its own to the other side, for as long as it lasts. If the
    client hangs, the thread stays with it; once all of them do, nothing counts as tried until one comes back.
    """

    capabilities = Capabilities(ordered=True)

    def __init__(self, name: str) -> None:
        self.name = name
        self._threads = Threads(THREADS, f"postroom-{name.partition(':')[0]}")
        self._places = asyncio.Semaphore(THREADS)
        self._idle: list[Any] = []
        self._closed = False

    def connect(self, seconds: float) -> Any:
        """Open a line, in a thread. Raises `BrokerUnavailable`."""
        raise NotImplementedError

    def send(self, line: Any, message: Message, seconds: float) -> Outcome:
        """Send one message, in a thread. After `Unreached` or a timeout, no more are sent."""
        raise NotImplementedError

    def is_usable(self, line: Any) -> bool:
        """Whether more can be sent over the line after what was sent last."""
        raise NotImplementedError

    def disconnect(self, line: Any) -> None:
        """Close a line, in a thread."""
        raise NotImplementedError

    def drop(self, line: Any) -> None:
        """Close a line that has probably broken, in a thread."""
        self.disconnect(line)

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Send the messages, those of one key in order. Raises `BrokerUnavailable`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            if self._threads.abandoned < self._threads.number:
                return [NOT_SENT] * len(messages)
            raise BrokerUnavailable(f"{self.name}: all {self._threads.number} threads wait for it in vain") from None
        lines = 1
        while lines < min(LINES, math.ceil(len(messages) / WORTH_A_LINE)) and not self._places.locked():
            await self._places.acquire()  # at once: it is free
            lines += 1
        sending = _Sending(self, messages, deadline - loop.time())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    runs = (self._threads.call(sending.run, ended=self._places.release) for _ in range(lines))
                    await asyncio.gather(*runs)
        finally:
            sending.give_up()
        return sending.outcomes(timeout)

    async def close(self) -> None:
        """Close the lines that are not in use, and end the threads."""
        self._closed = True
        with suppress(Exception):  # a server that does not answer: nobody needs it any more
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._threads.call(self._close_idle, self.disconnect)
        self._threads.close()

    def take(self, seconds: float) -> Any:
        """A line, in a thread. Raises `BrokerUnavailable`."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(seconds)

    def give_back(self, line: Any) -> None:
        """Keep a line for the next publish if it can be used, or close it; in a thread."""
        with suppress(Exception):  # nobody needs it any more
            if not self.is_usable(line):
                self.disconnect(line)
                self._close_idle(self.drop)  # they broke with it, or know as little of what has changed over there
            elif self._closed:
                self.disconnect(line)
            else:
                self._idle.append(line)

    def _close_idle(self, close: Callable[[Any], None]) -> None:
        while self._idle:
            with suppress(Exception):  # nobody needs it any more; or another thread took the last one
                close(self._idle.pop())


class _Sending:
    """The messages of one publish, on their way through one or more threads."""

    def __init__(self, broker: BlockingBroker, messages: Sequence[Message], seconds: float) -> None:
        self._broker = broker
        self._messages = messages
        now = time.monotonic()
        self._deadline = now + seconds
        self._start_before = now + seconds * START_SHARE
        self._lock = threading.Lock()
        self._waiting = deque(places_by_key([message.key for message in messages]))
        self._being_sent: set[int] = set()
        self._outcomes: dict[int, Outcome] = {}
        self._is_connected = False
        self._unavailable: str | None = None
        self._given_up = False

    def run(self) -> None:
        """Send over one line, as many as there is time for."""
        line: Any = None
        try:
            while indexes := self._next():
                for index in indexes:
                    line = self._usable(line)
                    if not self._starts(index):
                        return
                    self._ended(index, self._broker.send(line, self._messages[index], self._left()))
        except BrokerUnavailable as error:
            self._unavailable = str(error)
            self.give_up()
        finally:
            if line is not None:
                self._broker.give_back(line)

    def give_up(self) -> None:
        """Start no more."""
        with self._lock:
            self._given_up = True

    def outcomes(self, timeout: float) -> list[Outcome]:
        """One for each message, after `give_up`."""
        with self._lock:
            rest: Outcome = NOT_SENT if self._unavailable is None else Unreached(self._unavailable)
            if not self._is_connected and self._unavailable is None:
                rest = Unreached(f"{self._broker.name} could not be connected to within {timeout:g} s")
            unheard = dict.fromkeys(self._being_sent, timed_out(timeout))
            found = unheard | self._outcomes
            return [found.get(index, rest) for index in range(len(self._messages))]

    def _next(self) -> list[int]:
        """The places of messages that must follow one another; none if no more are to be sent."""
        with self._lock:
            return [] if self._given_up or not self._waiting else self._waiting.popleft()

    def _usable(self, line: Any) -> Any:
        """The line, or another if it has broken."""
        if line is not None and self._broker.is_usable(line):
            return line
        if line is not None:
            self._broker.give_back(line)
        taken = self._broker.take(self._left())
        self._is_connected = True
        return taken

    def _starts(self, index: int) -> bool:
        """Whether there is time for one more."""
        with self._lock:
            if self._given_up or time.monotonic() >= self._start_before:
                return False
            self._being_sent.add(index)
            return True

    def _ended(self, index: int, outcome: Outcome) -> None:
        with self._lock:
            self._being_sent.discard(index)
            self._outcomes[index] = outcome
        if isinstance(outcome, Unreached):
            self._unavailable = outcome.reason
            self.give_up()
        elif isinstance(outcome, Refused) and outcome.code == Reason.TIMEOUT:
            self.give_up()

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.05)
