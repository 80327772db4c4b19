"""A consumer's run: from the first message received to the last one acknowledged."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from postroom.errors import BrokerUnavailable
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from postroom.consumer.intake import Intake
    from postroom.consumer.runner import HandlerRunner
    from postroom.delivery.engine import Engine
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.workers import Workers
    from postroom.telemetry.events import Hook

AT_HAND = 0.2
"""Seconds in which a broker gives what it has."""
JOINING = 100.0
"""Seconds in which a source is let in: a group waits that long for a member that is gone."""
ANNOUNCED_EVERY = 2.0
LEAVING = 5.0


class ConsumerRun:
    """Receives and handles messages, and retries what is parked."""

    def __init__(
        self,
        consumer: str,
        worker: str,
        *,
        intake: Intake,
        runner: HandlerRunner,
        engine: Engine,
        announcement: Announcement,
        stopping: asyncio.Event,
        hook: Hook,
    ) -> None:
        self.intake = intake
        self._consumer = consumer
        self._worker = worker
        self._runner = runner
        self._engine = engine
        self._announcement = announcement
        self._stopping = stopping
        self._hook = hook

    def stop(self) -> None:
        """Receive no more, and retry no more."""
        self._stopping.set()
        self._engine.stop()

    async def run(self) -> None:
        """Receive and handle until `stop`."""
        async with self._working(), asyncio.TaskGroup() as group:
            group.create_task(self._engine.run())
            announcing = group.create_task(self._announcement.run(self._state))
            await self.intake.receive()
            announcing.cancel()

    async def run_once(self) -> None:
        """Handle what the broker has at hand, and what is parked and due.

        Raises `BrokerUnavailable`; also if handlers hang, and nothing more can be handled.
        """
        async with self._working(), asyncio.TaskGroup() as group:
            watching = group.create_task(self._stop_when_hung())
            deadline = time.monotonic() + JOINING
            while not self._stopping.is_set():
                if not await self.intake.receive_some(AT_HAND) and not self.intake.is_behind(deadline):
                    break
            await self.intake.wait_until_idle()
            if not self._stopping.is_set():
                await self._engine.run_once()
            watching.cancel()
        if self._runner.all_hung:
            raise BrokerUnavailable(f"not all is handled: {self._runner.stuck or 'all calls hang'}")

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """The workers at work; afterwards all that was received is acknowledged or given back."""
        self._hook(Lifecycle(self._worker, "started", self._consumer))
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker.run()) for worker in self.intake.workers]
            group.create_task(self.intake.acknowledge())
            try:
                yield
            finally:
                self._stopping.set()
                await self.intake.wait_until_idle()
                self.intake.close()
                for worker in workers:
                    worker.cancel()
        await self._announcement.withdraw()
        self._hook(Lifecycle(self._worker, "stopped", self._consumer))

    async def _stop_when_hung(self) -> None:
        await self._runner.hung.wait()
        self._stopping.set()

    def _state(self) -> tuple[int, str]:
        """How many messages are in flight, and why no more are received."""
        return self.intake.in_flight, self.intake.down or self._runner.stuck or ""


class Announcement:
    """The row that shows a consumer in `postroom status`, and why it receives nothing."""

    def __init__(self, workers: Workers, connection: Connection, worker: str) -> None:
        self._workers = workers
        self._connection = connection
        self._worker = worker

    async def run(self, state: Callable[[], tuple[int, str]]) -> None:
        """Write how many messages are in flight, and why the broker cannot be reached, until cancelled."""
        while True:
            in_flight, down = state()
            with suppress(Outage):
                await self._connection.attempt(self._workers.beat(self._worker, 0, in_flight, down))
            await asyncio.sleep(ANNOUNCED_EVERY)

    async def withdraw(self) -> None:
        """Remove the row."""
        with suppress(Outage, TimeoutError):
            async with asyncio.timeout(LEAVING):
                await self._connection.attempt(self._workers.leave(self._worker))
