"""A desk: handles messages one after another, in the order in which they are laid on it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING

from postroom.consumer.outcomes import Fate
from postroom.consumer.parked import as_parked, not_kept, ordering_key, without_payload
from postroom.consumer.running import StillRunning, said
from postroom.rules import failures
from postroom.rules.failures import Reason
from postroom.rules.ordering import key_hash
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE, Outage
from postroom.store.outbox.parking import Failed
from postroom.store.sql.db_errors import is_refused_value, is_unwritable_value
from postroom.telemetry.events import Handled, Raised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from postroom.consumer.handlers import Handler
    from postroom.consumer.office import Office
    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.sources.port import Received
    from postroom.store.outbox.parking import Parked

    Done = Callable[[Sequence[Received], Fate], None]


SURE = 2
"""How often a database refuses a message until it is kept without its payload, which is lost then."""


class Desk:
    """Works through what is laid on it. What stands behind a message of its key is not touched before it is done."""

    def __init__(self, office: Office, done: Done) -> None:
        self._office = office
        self._done = done
        self._waiting: deque[Received] = deque()
        self._filled = asyncio.Event()
        self._busy = 0

    @property
    def load(self) -> int:
        """Messages that are laid on it and not done."""
        return len(self._waiting) + self._busy

    def lay(self, received: Received) -> None:
        """Put a message behind the others."""
        self._waiting.append(received)
        self._filled.set()

    async def run(self) -> None:
        """Work until cancelled. When the consumer stops, what has not been begun goes back undone."""
        while True:
            await self._filled.wait()
            while self._waiting:
                if self._office.stopping.is_set():
                    undone = list(self._waiting)
                    self._waiting.clear()
                    self._done(undone, Fate.UNDONE)
                    break
                await self._work(self._next())
            self._filled.clear()

    def _next(self) -> list[Received]:
        """The next message; with it those behind it, as far as one handler takes them together."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        handler = self._office.handler_for(taken[0].message)
        if handler is not None and handler.takes_batch:
            while waiting and len(taken) < self._office.batch and self._goes_with(handler, waiting[0].message):
                taken.append(waiting.popleft())
        self._busy = len(taken)
        return taken

    def _goes_with(self, handler: Handler, message: Incoming) -> bool:
        return message.problem is None and self._office.handler_for(message) is handler

    def _stands_behind(self, message: Incoming) -> bool:
        return message.key is not None and self._office.parked_keys.holds(hash_of(message.key))

    async def _work(self, received: Sequence[Received]) -> None:
        pause = FIRST_PAUSE
        left, at_once = list(received), len(received)
        while left:
            try:
                done = await self._attempt(self._free(left[:at_once]))
            except Outage:  # the service's own database is away: nothing can be handled, and nothing parked
                self._office.lose_patience()
                if await self._office.stops_within(pause):
                    self._done(left, Fate.UNDONE)
                    break
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                left = left[done:]
                at_once = at_once if done else 1  # one of them is at fault: each for itself
        self._busy = 0

    def _free(self, received: Sequence[Received]) -> Sequence[Received]:
        """The first, and those after it that may be handled with it, because nothing of their keys is parked."""
        first, *others = received
        return [first, *takewhile(lambda one: not self._stands_behind(one.message), others)]

    async def _attempt(self, received: Sequence[Received]) -> int:
        """Do something with these, or with the first of them; returns with how many.

        None, if a handler of several failed. Raises `Outage`: then nothing was done.
        """
        first = received[0]
        message = first.message
        if message.problem is not None:
            failed = Failed(Reason.UNDECODABLE, message.problem, None)
            return await self._park(first, failed)
        handler = self._office.handler_for(message)
        if handler is None:
            self._finish([first], Fate.SKIPPED)
            return 1
        if self._stands_behind(message):
            return await self._park(first, None)
        return await self._call(handler, received)

    async def _call(self, handler: Handler, received: Sequence[Received]) -> int:
        first, started = received[0], time.monotonic()
        try:
            is_first = await self._office.runner.run(handler, [one.message for one in received])
        except Outage:
            raise
        except StillRunning:
            return await self._park(first, None) if len(received) == 1 else 0
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            messages = [one.message for one in received]
            self._office.hook(Raised(handler.name, messages, error, self._office.name))
            if len(received) > 1:
                return 0
            return await self._park(first, self._failure(handler, error), time.monotonic() - started)
        seconds = time.monotonic() - started
        self._finish([one for one, new in zip(received, is_first, strict=True) if new], Fate.HANDLED, seconds)
        self._finish([one for one, new in zip(received, is_first, strict=True) if not new], Fate.DUPLICATE)
        return len(received)

    def _failure(self, handler: Handler, error: Exception) -> Failed:
        classifier = self._office.classifier
        code = failures.reason_code(error, classifier)
        match failures.after_failure(1, handler.policy, failures.classify(code, classifier), random.random()):  # noqa: S311 - jitter
            case failures.RetryAfter(delay):
                return Failed(code, said(error, handler), delay)
            case failures.GiveUp():
                return Failed(code, said(error, handler), None)

    async def _park(self, received: Received, failed: Failed | None, seconds: float = 0.0) -> int:
        office, message = self._office, received.message
        parked, failed = await self._keep(as_parked(office.name, message), failed)
        if message.key is not None:
            office.parked_keys.add(hash_of(message.key))
        fate = Fate.DEAD if failed is not None and failed.delay is None else Fate.PARKED
        self._finish([received], fate, seconds, failed.code if failed else "", [parked.id])
        if fate is Fate.PARKED:
            office.wake()
        return 1

    async def _keep(self, message: Message, failed: Failed | None) -> tuple[Parked, Failed | None]:
        """Keep a message; what the database will never take is kept without its payload, as a dead letter."""
        line, parking = self._office.line, self._office.parking
        for _ in range(SURE):
            try:
                return await line.attempt(parking.park(message, failed)), failed
            except Outage as outage:
                error = outage.__cause__ or outage
                is_refused = is_refused_value(error) or is_unwritable_value(error)
                if not is_refused and not await line.attempt(parking.is_too_large(message)):
                    raise
        dead = Failed(Reason.MESSAGE_TOO_LARGE, not_kept(message, failed.message if failed else None), None)
        return await line.attempt(parking.park(without_payload(message), dead)), dead

    def _finish(
        self,
        received: Sequence[Received],
        fate: Fate,
        seconds: float = 0.0,
        code: str = "",
        outbox_ids: Sequence[UUID] = (),
    ) -> None:
        if received:
            messages = [one.message for one in received]
            self._office.hook(Handled(self._office.name, fate.value, messages, code, seconds, outbox_ids=outbox_ids))
            self._done(received, fate)


def hash_of(key: str) -> int:
    """What a key is found by among the parked ones."""
    return key_hash(ordering_key(key))
