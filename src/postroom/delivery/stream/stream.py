"""The stream of an outbox as one relay sees it: reads it while it has the lease, else waits for it to come free."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.delivery.stream.recording import TAKEN, TermEnded
from postroom.delivery.stream.term import Beginning, Term, first_of
from postroom.errors import CdcUnavailable, PostroomError, PrivilegeMissing
from postroom.rules.stream.beginning import Found, Left, start
from postroom.rules.stream.modes import Mode
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE
from postroom.store.connections.replication import StreamBroken
from postroom.store.stream.leadership import Leadership
from postroom.store.stream.records import StreamRecords
from postroom.store.stream.slots import LOST, Slots
from postroom.store.stream.switching import Switching
from postroom.telemetry.events import StreamChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroom.delivery.queue import EngineOptions
    from postroom.delivery.queue_worker import QueueWorker
    from postroom.rules.ordering import Order
    from postroom.store.connections.reconnecting import Database
    from postroom.store.stream.leadership import Term as Lease
    from postroom.telemetry.events import Hook

LEAVING = 5.0
"""Seconds to give up the lease."""
LOOKS = 1.0
"""Seconds between two looks at whether the lease is free."""
SETTING_UP = 600.0
"""Seconds for statements that wait for every open transaction, or go through the whole outbox."""


class _Stopped(TermEnded):
    """Nothing was read yet when the relay was told to stop."""


class Stream:
    """Reads the stream under a lease, and stands by while another relay has it."""

    def __init__(
        self,
        database: Database,
        url: str,
        order: Order,
        options: EngineOptions,
        *,
        queue_of: Callable[[str], str] | None = None,
        most_wal: int | None = None,
        hook: Hook,
    ) -> None:
        names = database.store.names
        self._database = database
        self._url = url
        self._options = options
        self._queue_of = queue_of
        self._most_wal = most_wal
        self._hook = hook
        self._leadership = Leadership(names)
        self._slots = Slots(names)
        self._records = StreamRecords(names, order)
        self._heartbeats, self._settlements = database.connect(), database.connect()
        self._questions = database.connect()
        self._setting_up = database.connect(SETTING_UP)
        self._switching = Switching(names)
        self._workers: Mapping[str, QueueWorker] = {}
        self._stopping = asyncio.Event()
        self._term: Term | None = None
        self._told = ""
        self._is_beyond_repair = False
        """Whether the slot must be made anew."""
        self._is_set_up = True
        """Whether the server lets the stream be read, as far as is known."""
        self._may_begin = True
        """Whether to put the outbox into the stream: at the start, but not after somebody took it out."""

    def serve(self, workers: Mapping[str, QueueWorker]) -> None:
        """Learn which queues this relay serves."""
        self._workers = workers

    async def run(self) -> None:
        """Read, or stand by, until `stop`."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self._stopping.is_set():
            try:
                if await self._lead():
                    backoff.reset()
                    continue
                await self._help_to_close()
                pause = min(LOOKS, self._options.heartbeat)
            except Exception as error:  # noqa: BLE001 - whatever it is, what is in the table goes on
                if not isinstance(error, _Stopped):
                    self._lost(error)
                pause = backoff.next()
            await wait_for(self._stopping, pause)

    def _lost(self, error: Exception) -> None:
        """Note what ended a term."""
        is_ours = not isinstance(error, PostroomError | StreamBroken)
        if is_ours:
            self._database.note_flaw(error)
        self._is_beyond_repair = isinstance(error, StreamBroken) and error.is_beyond_repair
        self._is_set_up = not isinstance(error, CdcUnavailable) and not isinstance(error.__cause__, PrivilegeMissing)
        self._tell("lost" if self._is_set_up else "not set up", type(error).__name__ if is_ours else str(error))

    def stop(self) -> None:
        """Read no more."""
        self._stopping.set()
        if self._term is not None:
            self._term.leave()

    async def reached(self, place: int) -> bool:
        """Whether everything before this place is settled or on record, by this relay or by another."""
        if self._term is not None:
            return await self._term.reached(place)
        state = await self._heartbeats.attempt(self._leadership.state())
        if state.mode is Mode.TABLE and not (self._may_begin and self._is_set_up):
            return True  # it was taken out of the stream, or cannot be put into it: all is in the table
        return state.done >= place and state.owner != ""

    async def end_of_wal(self) -> int:
        """The place up to which everything is committed now."""
        return await self._heartbeats.attempt(self._slots.end_of_wal())

    async def _lead(self) -> bool:
        """Take the lease if it is free, and read until it is over; returns whether there was one."""
        lease = await self._heartbeats.attempt(
            self._leadership.take(self._options.worker, self._options.lane_lease, begin=self._may_begin)
        )
        if lease is None:
            return False
        try:
            done, read_to = await self._read_under(lease)
        except BaseException:
            # Whatever ended it, nothing is in flight any more: whoever comes next need not wait for the lease to end.
            with suppress(PostroomError, TimeoutError):
                async with asyncio.timeout(LEAVING):
                    await self._heartbeats.attempt(self._leadership.release(lease.token, 0))
            raise
        await self._heartbeats.attempt(self._leadership.release(lease.token, done, read_to))
        self._tell("left", "")
        return True

    async def _read_under(self, lease: Lease) -> tuple[int, int]:
        """Read until the term is over; returns how far everything is done, and how far anything was read."""
        beginning = await self._begin_under(lease)
        term = self._new_term(lease, beginning, time.monotonic())
        renew = self._leadership.renew(lease.token, self._options.lane_lease, beginning.done)
        if await self._heartbeats.attempt(renew) is None:
            raise TermEnded(TAKEN)
        self._term = term
        if self._stopping.is_set():
            term.leave()
        try:
            await term.run()
        finally:
            self._term = None
        if term.gives_up:
            await self._give_up()
        return term.progress.done, term.known_until

    async def _begin_under(self, lease: Lease) -> Beginning:
        """Find out where to begin, with the lease kept meanwhile."""
        try:
            async with asyncio.TaskGroup() as group:
                meanwhile = [group.create_task(self._keep(lease)), group.create_task(self._until_stopped())]
                beginning = await self._begin(lease)
                for task in meanwhile:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        return beginning

    def _new_term(self, lease: Lease, beginning: Beginning, started: float) -> Term:
        return Term(
            lease=lease,
            beginning=beginning,
            url=self._url,
            options=self._options,
            workers=self._workers,
            queue_of=self._queue_of,
            leadership=self._leadership,
            records=self._records,
            slots=self._slots,
            heartbeats=self._heartbeats,
            settlements=self._settlements,
            questions=self._questions,
            deadline=started + self._options.lane_lease,
            most_wal=self._most_wal,
            hook=self._hook,
            stopping=self._stopping,
            began=self._leads,
        )

    def _leads(self, slot: str) -> None:
        """The server has begun to send."""
        self._is_set_up = True
        self._tell("leads", f"from {slot}")

    async def _keep(self, lease: Lease) -> None:
        """Renew the lease while publication and slot are made, which may take long."""
        while True:
            await asyncio.sleep(self._options.heartbeat)
            renew = self._leadership.renew(lease.token, self._options.lane_lease, 0)
            if await self._heartbeats.attempt(renew) is None:
                raise TermEnded(TAKEN)

    async def _until_stopped(self) -> None:
        """Have the statement cancelled that may wait for every open transaction."""
        await self._stopping.wait()
        raise _Stopped("the relay stops")

    async def _begin(self, lease: Lease) -> Beginning:
        """Make what is missing, and find out where to begin.

        What was left behind by a slot that is gone, or written while nothing published it, gets deliveries.
        """
        setting_up = self._setting_up.attempt
        server = await setting_up(self._slots.server())
        name = self._slots.slot_of(server)
        slot = await setting_up(self._slots.slot(name))
        publication = await setting_up(self._slots.publication_id())
        is_changed = lease.mode is Mode.STREAM and lease.publication != publication
        if slot is not None and (slot.wal_status == LOST or not publication or is_changed or self._is_beyond_repair):
            why = "may not have shown all" if is_changed or not publication else "was lost"
            self._tell("dropped", f"slot {name} {why}")
            await setting_up(self._slots.drop_slot(name))
            slot, self._is_beyond_repair = None, False
        if not publication:
            await setting_up(self._slots.publish())
            publication = await setting_up(self._slots.publication_id())
        if slot is None:
            await setting_up(self._slots.create_slot(name, server.version))
            self._tell("created", f"slot {name}")
            slot = await setting_up(self._slots.slot(name))
        if slot is None:
            raise TermEnded(f"slot {name} is gone")
        await setting_up(self._slots.free_slot(slot))
        end = await setting_up(self._slots.end_of_wal())
        left = Left(lease.slot, lease.system_id, lease.done, lease.read_to, lease.interrupted)
        begins = start(left, Found(name, server.system_id, slot.confirmed, end))
        if begins.needs_sweep:
            await self._sweep(lease)  # not before that is done may the record name this slot
        done = begins.done
        if not await setting_up(self._leadership.begin(lease.token, name, server.system_id, publication, done)):
            raise TermEnded("the lease was lost, or the outbox is taken out of the stream")
        return Beginning(
            slot=name,
            publication=publication,
            done=done,
            known_until=begins.known_until or await setting_up(self._slots.end_of_wal()),
            queues=frozenset(await setting_up(self._records.queues())),
            waits_for_standby=server.synchronous,
        )

    async def _sweep(self, lease: Lease) -> None:
        swept = await self._setting_up.attempt(self._records.sweep(lease.token))
        if swept is None:
            raise TermEnded(TAKEN)
        self._tell("swept", f"{swept} messages got deliveries")

    async def _help_to_close(self) -> None:
        """If the outbox is to leave the stream, do what can be done for it now."""
        state = await self._heartbeats.attempt(self._leadership.state())
        if state.mode.lanes_rest:
            self._may_begin = False
            server = await self._heartbeats.attempt(self._slots.server())
            if state.slot != self._slots.slot_of(server):
                return  # it comes back from Debezium, which has to send what it was given
            waits = await self._setting_up.attempt(self._switching.advance())
            self._tell("closes", waits or "the outbox is back in the table")

    async def _give_up(self) -> None:
        """Go back to the table: the server keeps too much for the slot."""
        self._tell("gave up", f"the slot held more than {self._most_wal} bytes of write-ahead log")
        await self._heartbeats.attempt(self._leadership.change_mode([Mode.STREAM], Mode.CLOSING))
        self._may_begin = False

    def _tell(self, what: str, detail: str) -> None:
        if (told := f"{what} {detail}") != self._told:
            self._told = told
            self._hook(StreamChanged(self._options.worker, what, detail))
