"""The crew: a relay's shifts, one for each broker, and the sorter that brings them their messages, at work as one."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from postroom.brokers.no_broker import NoBroker
from postroom.delivery.queue_worker import LEAVING
from postroom.errors import PostroomError
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from postroom.delivery.queue_router import Sorter
    from postroom.delivery.queue_worker import Part, Shift
    from postroom.store.connections.reconnecting import ReconnectingConnection


class Crew:
    """What a run of a relay consists of."""

    def __init__(
        self,
        shifts: Sequence[Shift],
        sorter: Sorter | None,
        lines: Sequence[ReconnectingConnection],
        others: Sequence[Part],
    ) -> None:
        self._shifts = shifts
        self._sorter = sorter
        self._lines = lines
        self._others = others
        self._first = shifts[0].office
        self._stopping = asyncio.Event()

    async def work(self) -> None:
        """Deliver until the relay stops."""
        async with self._at_work():
            await self._while_wanted(*self._work())

    async def work_once(self) -> None:
        """Deliver what could be sent now."""
        async with self._at_work():
            await self._while_wanted(self._once())

    async def work_until_empty(self) -> None:
        """Deliver until nothing is left that could be sent."""
        async with self._at_work():
            await self._while_wanted(*self._work(), self._stop_when_empty())

    def wake(self) -> None:
        """Something was committed."""
        if self._sorter is not None:
            self._sorter.wake()
        for shift in self._shifts:
            shift.office.wake()

    def stop(self) -> None:
        """Claim no more."""
        self._stopping.set()
        if self._sorter is not None:
            self._sorter.stop()
        for shift in self._shifts:
            shift.office.stop()

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(line.close() for line in self._lines))

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        sorting = [] if self._sorter is None else [self._sorter.run()]
        return [*sorting, *(collector.run() for shift in self._shifts for collector in shift.collectors)]

    async def _once(self) -> None:
        if self._sorter is not None:
            await self._sorter.sort_all()
        async with asyncio.TaskGroup() as group:
            for shift in self._shifts:
                group.create_task(shift.collect_once())

    async def _stop_when_empty(self) -> None:
        """Stop when nothing is left that could be sent. What has no broker could not."""
        while not self._stopping.is_set() and await self._anything_left():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._first.options.poll_interval, 0.1)):
                    await self._stopping.wait()
        self.stop()

    async def _anything_left(self) -> bool:
        """Asked in the order in which messages go: what moves on meanwhile is found twice, and not nowhere."""
        if self._sorter is not None and await self._sorter.anything_to_sort():
            return True
        for shift in self._shifts:
            if not isinstance(shift.office.broker, NoBroker) and await shift.anything_to_send():
                return True
        return False

    async def _while_wanted(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do this until it ends. When the relay stops it ends soon, unless the database is away: then it is ended."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            watch = group.create_task(self._end_when_overdue(tasks))
            await asyncio.wait(tasks)
            watch.cancel()

    async def _end_when_overdue(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._shifts[0].patience)
        for task in tasks:
            task.cancel()

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """All parts but the collectors at work; afterwards nothing is left in flight, and no lane held."""
        office = self._first
        await asyncio.gather(*(line.answers() for line in self._lines))  # all connections are open before it starts
        await self._begin()
        office.hook(Lifecycle(office.options.worker, "started"))
        try:
            async with asyncio.TaskGroup() as group:
                parts = [*(part for shift in self._shifts for part in shift.parts), *self._others]
                tasks = [group.create_task(part.run()) for part in parts]
                try:
                    yield
                finally:
                    await asyncio.gather(*(shift.land() for shift in self._shifts))
                    for task in tasks:
                        task.cancel()
        finally:
            await asyncio.gather(*(shift.leave() for shift in self._shifts))
            await self._sort_no_more()
            office.hook(Lifecycle(office.options.worker, "stopped"))

    async def _begin(self) -> None:
        if self._sorter is not None:
            with suppress(Outage):
                await self._sorter.begin()
        await asyncio.gather(*(shift.begin() for shift in self._shifts))

    async def _sort_no_more(self) -> None:
        if self._sorter is not None:
            with suppress(TimeoutError, PostroomError):
                async with asyncio.timeout(LEAVING):
                    await self._sorter.leave()
