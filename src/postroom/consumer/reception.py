"""The reception: takes messages from a source to the desks, and acknowledges what is done."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from postroom.consumer.desk import Desk, hash_of
from postroom.consumer.outcomes import Fate
from postroom.errors import BrokerUnavailable
from postroom.sources.port import Received
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE, Outage
from postroom.telemetry.events import Reachability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumer.office import Office
    from postroom.incoming import Incoming
    from postroom.sources.port import Source

WAIT = 0.5
"""Seconds that a source may wait for messages: a consumer that is asked to stop receives no longer than that."""


class Reception:
    """Everything that is received goes to a desk: messages of one key to the same one, the others where least waits."""

    def __init__(self, office: Office, source: Source | None, concurrency: int, most: int) -> None:
        self._office = office
        self._source = source
        self._most = most
        self.desks = [Desk(office, self._done) for _ in range(concurrency)]
        self._answers: dict[Received, asyncio.Future[Fate]] = {}
        """Of what came another way than by the source, which knows nothing of it."""
        self._to_acknowledge: list[Received] = []
        self._to_give_back: list[Received] = []
        self._unsettled = asyncio.Event()
        self._landed = asyncio.Event()
        self._closing = False
        self._in_flight = 0
        self._down: str | None = None
        """Why the broker cannot be reached; None while it can."""

    @property
    def state(self) -> tuple[int, str]:
        """How many messages are in hand, and why no more come."""
        return self._in_flight, self._down or self._office.runner.stuck or ""

    async def receive(self) -> None:
        """Take messages in until the consumer stops."""
        pause = FIRST_PAUSE
        while not self._office.stopping.is_set():
            try:
                await self.receive_some(WAIT)
                pause = FIRST_PAUSE
            except BrokerUnavailable:
                await self._office.stops_within(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def receive_some(self, seconds: float) -> int:
        """Take in what the source has, as far as there is room; returns how many. Raises `BrokerUnavailable`."""
        if self._source is None:
            await self._office.stops_within(seconds)
            return 0
        while self._in_flight >= self._most:
            await self._wait_for_landing()
        try:
            received = await self._source.receive(self._most - self._in_flight, seconds)
        except BrokerUnavailable as error:
            self._report(str(error))
            raise
        except Exception as error:
            self._report(f"{self._source.name}: {type(error).__name__}: {error}")
            raise BrokerUnavailable(str(self._down)) from error
        self._report(None)
        if received and await self._ask_for_parked([one.message for one in received]):
            for one in received:
                self._lay(one)
        elif received:
            self._to_give_back.extend(received)
            self._unsettled.set()
        return len(received)

    def is_behind(self, deadline: float) -> bool:
        """Whether the source has not been given all that is there. Raises `BrokerUnavailable` when it is too late."""
        source = self._source
        if not getattr(source, "is_behind", False):
            return False
        if source is not None and time.monotonic() > deadline:
            raise BrokerUnavailable(f"{source.name}: the consumer was not let in, or is not given what is there")
        return True

    async def handle(self, message: Incoming) -> Fate:
        """Handle one message that came another way; returns when it is done, or the consumer stops."""
        if self._office.stopping.is_set() or not await self._ask_for_parked([message]):
            return Fate.UNDONE
        received = Received(message)
        answer: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        self._answers[received] = answer
        self._lay(received)
        return await answer

    async def acknowledge(self) -> None:
        """Acknowledge what is done, and give back what is not, until all is done."""
        while not self._closing or self._unsettled.is_set():
            await self._unsettled.wait()
            self._unsettled.clear()
            await self._settle()

    def close(self) -> None:
        """Nothing more will be done."""
        self._closing = True
        self._unsettled.set()

    async def _settle(self) -> None:
        done, self._to_acknowledge = self._to_acknowledge, []
        undone, self._to_give_back = self._to_give_back, []
        if self._source is None:
            return
        try:
            if undone:
                await self._source.give_back(undone)
            if done:
                await self._source.acknowledge(done)
        except BrokerUnavailable:
            pass  # they come again, and are known; `receive` will tell that it is away
        except Exception as error:  # noqa: BLE001 - so do these, and the consumer goes on
            logging.getLogger("postroom").warning("%s: settling raised %s", self._source.name, type(error).__name__)

    async def wait_until_idle(self) -> None:
        """Return when nothing is in flight."""
        while self._in_flight:
            await self._wait_for_landing()

    async def _wait_for_landing(self) -> None:
        self._landed.clear()
        await self._landed.wait()

    def _lay(self, received: Received) -> None:
        self._in_flight += 1
        self._desk_for(received.message).lay(received)

    def _desk_for(self, message: Incoming) -> Desk:
        if message.key is None:
            return min(self.desks, key=lambda one: one.load)
        return self.desks[hash_of(message.key) % len(self.desks)]

    async def _ask_for_parked(self, messages: Sequence[Incoming]) -> bool:
        """Learn which keys have messages parked. False if the consumer stops before the database has said."""
        office = self._office
        keys = {hash_of(one.key) for one in messages if one.key is not None}
        if not keys:
            return True
        pause = FIRST_PAUSE
        while True:
            question, wanted = office.parked_keys.ask(keys)
            try:
                parked = await office.line.attempt(office.parking.parked(wanted))
            except Outage:
                if await office.stops_within(pause):
                    return False
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                office.parked_keys.answer(question, wanted, parked)
                return True

    def _done(self, received: Sequence[Received], fate: Fate) -> None:
        self._in_flight -= len(received)
        for one in received:
            answer = self._answers.pop(one, None)
            if answer is not None:
                if not answer.done():
                    answer.set_result(fate)
            elif fate.is_done:
                self._to_acknowledge.append(one)
            else:
                self._to_give_back.append(one)
        self._landed.set()
        self._unsettled.set()

    def _report(self, down: str | None) -> None:
        is_news = (self._down is None) != (down is None)
        self._down = down
        if self._source is not None and is_news:
            self._office.hook(Reachability(self._source.name, down is None, down or ""))
