"""The engine: runs any number of queues in one process, on one set of connections and one heartbeat."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from postroom.delivery.flow_writer import FlowWriter
from postroom.delivery.heartbeat import Heartbeat
from postroom.delivery.listener import Listener
from postroom.delivery.queue_router import QueueRouter
from postroom.delivery.queue_worker import LEAVING, QueueWorker
from postroom.errors import PostroomError
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import Outage
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.flow import Flow
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import channel
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.queue_worker import Part
    from postroom.delivery.stream.stream import Stream
    from postroom.rules.flow import FlowCounts
    from postroom.rules.routing import Routing
    from postroom.store.connections.reconnecting import Database


class Engine:
    """Delivers what is due in its queues. It is used for one run, on one event loop.

    ``connections`` are shared by all queues; by default they are a full set (`ConnectionSet.full`). With ``routing``,
    messages of the default queue are moved into the queues of their topics first; ``notify`` wakes whoever serves
    these. ``listen`` is a database URL on which to listen for commits, where the database can tell. ``flow`` is what
    hooks count in the queues: it is written to the database now and then. ``stream`` is read for all queues, besides.
    ``others`` work as long as the engine does;
    ``lifecycle`` is called with ``started`` and ``stopped``. Closing ``database``, and the destinations, is left to the
    caller.
    """

    def __init__(  # noqa: PLR0913 - what is optional comes by its name
        self,
        database: Database,
        queues: Sequence[Queue],
        options: EngineOptions,
        *,
        connections: ConnectionSet | None = None,
        routing: Routing | None = None,
        notify: bool = False,
        listen: str | None = None,
        flow: FlowCounts | None = None,
        others: Sequence[Part] = (),
        stream: Stream | None = None,
        lifecycle: Callable[[str], None] | None = None,
    ) -> None:
        self._lifecycle = lifecycle or (lambda _what: None)
        self._database = database
        self._options = options
        self._stopping = asyncio.Event()
        names = database.store.names
        if connections is None:
            connections = ConnectionSet.full(database, len(queues), keyed=any(queue.keyed for queue in queues))
        self._workers = {
            queue.name: QueueWorker(
                queue=queue,
                options=options,
                store=QueueStore(database.store.names, queue.name, queue.order, queue.claim_limits, queue.ledger_keep),
                workers=Workers(names, queue.name),
                connections=connections.for_queue(),
                stopping=self._stopping,
                moved_to=self._moved_to,
            )
            for queue in queues
        }
        self._stream = stream
        if stream is not None:
            stream.serve(self._workers)
        self._heartbeat = Heartbeat([one.lease_keeper for one in self._workers.values()], options.heartbeat)
        self._router: QueueRouter | None = None
        if routing is not None or DEFAULT_QUEUE in self._workers:
            # Without patterns there is little to do: the heartbeat's connection serves.
            connection = connections.heartbeats if routing is None else database.connect()
            self._router = QueueRouter(
                options=options,
                names=names,
                workers=Workers(names, DEFAULT_QUEUE),
                connection=connection,
                routing=routing,
                queues=self._workers.keys(),
                moved_to=self._moved_to,
                notify=notify,
            )
        self._others = [*others] if listen is None else [*others, self._listener(listen)]
        if flow is not None:
            self._others.append(FlowWriter(flow, Flow(names), connections.heartbeats))

    def _listener(self, url: str) -> Listener:
        names = self._database.store.names
        channels = {channel(names, queue): worker.signals.wake for queue, worker in self._workers.items()}
        if self._router is not None:
            channels.setdefault(channel(names, DEFAULT_QUEUE), self._router.wake)
        return Listener(url, channels)

    async def run(self) -> None:
        """Deliver until `stop` is called; then finish or give back what is in flight.

        An outage of the database or of a destination does not end it.
        """
        async with self._at_work():
            await self._until_done(*self._work())

    async def run_once(self) -> None:
        """Deliver what could be sent now, and return. Raises `Outage`."""
        async with self._at_work():
            await self._until_done(self._once())

    async def run_until_empty(self) -> None:
        """Deliver until nothing is left that could be sent, by this or by another worker."""
        async with self._at_work():
            await self._until_done(*self._work(), self._stop_when_empty())

    def wake(self) -> None:
        """Look for work now: something was committed."""
        if self._router is not None:
            self._router.wake()
        for worker in self._workers.values():
            worker.signals.wake()

    def stop(self) -> None:
        """Claim no more."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.stop()
        if self._router is not None:
            self._router.stop()
        for worker in self._workers.values():
            worker.stop()

    def _moved_to(self, queue: str) -> None:
        """Messages were moved into a queue, which may be one of ours."""
        if queue in self._workers:
            self._workers[queue].moved_in()

    def _work(self) -> list[Coroutine[Any, Any, None]]:
        routing = [] if self._router is None else [self._router.run()]
        return [*routing, *(poller.run() for worker in self._workers.values() for poller in worker.pollers)]

    async def _once(self) -> None:
        await self._read_stream()
        if self._router is not None:
            await self._router.route_all()
        async with asyncio.TaskGroup() as group:
            for worker in self._workers.values():
                group.create_task(worker.collect_once())

    async def _read_stream(self) -> None:
        """Wait until all that is committed now was read from the stream, by whichever relay."""
        if self._stream is None:
            return
        place = await self._stream.end_of_wal()
        while not self._stopping.is_set() and not await self._stream.reached(place):
            await wait_for(self._stopping, min(self._options.poll_interval, 0.1))

    async def _stop_when_empty(self) -> None:
        await self._read_stream()
        while not self._stopping.is_set() and await self._anything_left():
            await wait_for(self._stopping, min(self._options.poll_interval, 0.1))
        self.stop()

    async def _anything_left(self) -> bool:
        """Ask in the order in which messages move: what moves on meanwhile is found twice rather than not at all.

        What a handler or a saga does may add to any queue, also to one that was asked before. So an answer counts only
        if nothing was in flight from the first question to the last.
        """
        workers = [worker for worker in self._workers.values() if worker.queue.has_destination]
        busy, takes = any(len(worker.in_flight) for worker in workers), _takes(workers)
        if self._router is not None and await self._router.anything_to_route():
            return True
        for worker in workers:
            if await worker.anything_to_send():
                return True
        return busy or takes != _takes(workers)

    async def _until_done(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do this until it ends. After `stop` it ends soon, unless the database is away: then it is cancelled."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            watch = group.create_task(self._cancel_when_overdue(tasks))
            await asyncio.wait(tasks)
            watch.cancel()

    async def _cancel_when_overdue(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        await asyncio.sleep(max(worker.patience for worker in self._workers.values()))
        for task in tasks:
            task.cancel()

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """All parts but the pollers are at work; afterwards nothing is in flight, and no lane is held."""
        workers = self._workers.values()
        await self._database.open_all()
        await self._begin()
        self._lifecycle("started")
        try:
            async with asyncio.TaskGroup() as group:
                parts = [*(part for worker in workers for part in worker.parts), self._heartbeat, *self._others]
                tasks = [group.create_task(part.run()) for part in parts]
                reading = None if self._stream is None else group.create_task(self._stream.run())
                try:
                    yield
                finally:
                    if self._stream is not None and reading is not None:
                        self._stream.stop()
                        await self._until_left(reading)
                    await self._finish()
                    for task in tasks:
                        task.cancel()
        finally:
            await asyncio.gather(*(worker.leave() for worker in workers), self._stop_routing())
            self._lifecycle("stopped")

    async def _until_left(self, reading: asyncio.Task[None]) -> None:
        """Wait until nothing of the stream is in flight. While the database is away, the lease ends by itself."""
        patience = max(worker.patience for worker in self._workers.values())
        _, pending = await asyncio.wait([reading], timeout=patience + LEAVING)
        for task in pending:
            task.cancel()

    async def _begin(self) -> None:
        if self._router is not None:
            with suppress(Outage):
                await self._router.begin()
        await asyncio.gather(*(worker.begin() for worker in self._workers.values()))

    async def _finish(self) -> None:
        """Wait for what is in flight; afterwards no lane is taken any more."""
        await asyncio.gather(*(worker.finish() for worker in self._workers.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                await self._heartbeat.finish()

    async def _stop_routing(self) -> None:
        if self._router is not None:
            with suppress(TimeoutError, PostroomError):
                async with asyncio.timeout(LEAVING):
                    await self._router.leave()


def _takes(workers: Sequence[QueueWorker]) -> int:
    return sum(worker.in_flight.takes for worker in workers)
