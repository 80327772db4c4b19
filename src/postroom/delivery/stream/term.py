"""A term: from when a relay has the lease on the stream until it gives it up or loses it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from postroom.delivery.destination import LongRunning
from postroom.delivery.stream.recording import TAKEN, Recording, TermEnded
from postroom.delivery.stream.stream_queue import StreamQueue
from postroom.rules.stream.beginning import read_before
from postroom.rules.stream.modes import Mode
from postroom.rules.stream.pgoutput import (
    Begin,
    Commit,
    Decoder,
    Keepalive,
    LogMessage,
    acknowledgement,
)
from postroom.rules.stream.progress import Progress
from postroom.rules.stream.stream_rows import StreamRow
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import Outage
from postroom.store.connections.replication import UNDEFINED, ReplicationConnection, StreamBroken, id_of
from postroom.store.outbox.leases import Claimed
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.steps import Query
from postroom.store.stream.log_messages import LogRecords, UnsentOfLog, prefix_of, row_of
from postroom.store.stream.records import NewDelivery, NewReceipts
from postroom.telemetry.events import StreamChanged, StreamRead

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.delivery.queue import EngineOptions
    from postroom.delivery.queue_worker import QueueWorker
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.leadership import Leadership
    from postroom.store.stream.leadership import Term as Lease
    from postroom.store.stream.records import StreamRecords
    from postroom.store.stream.slots import Slots
    from postroom.telemetry.events import Hook

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024
"""Of what is read at once."""
MANY = 64
GATHERING = 0.004
"""Seconds for which messages gather while others are in flight, if many came at once, but not as many as can be taken:
together they cost less."""
SILENT = 60.0
"""Seconds after which a server that does not answer counts as gone."""
LEAVING = 5.0
"""Seconds for statements that are under way when a term ends."""
A_MOMENT = 0.002
CONFIRMED_EVERY = 0.1
"""Seconds between two acknowledgements, at least."""
ASKED_EVERY = 0.02
"""Seconds until the server is asked again how far it is."""


class Beginning(NamedTuple):
    """Where a term begins to read, and what it knows of what comes first."""

    slot: str
    publication: int
    done: int
    """Recorded: nothing beyond it may be confirmed to the server."""
    known_until: int
    """Transactions that were committed before this place may be on record already."""
    queues: frozenset[str]
    """All that deliveries may be in."""
    waits_for_standby: bool
    """Whether a commit may be taken back that the stream shows already: see `_agreement`."""


@dataclass(slots=True, eq=False, kw_only=True)
class Term:
    """Reads the stream under one lease, and has it sent and recorded. Used once."""

    lease: Lease
    beginning: Beginning
    url: str
    options: EngineOptions
    workers: Mapping[str, QueueWorker]
    queue_of: Callable[[str], str] | None
    leadership: Leadership
    records: StreamRecords
    slots: Slots
    heartbeats: ReconnectingConnection
    settlements: ReconnectingConnection
    questions: ReconnectingConnection
    deadline: float
    most_wal: int | None
    hook: Hook
    stopping: asyncio.Event
    began: Callable[[str], None]
    """Is told the slot's name when the server has begun to send."""
    progress: Progress = field(init=False)
    log: LogRecords = field(init=False)
    _prefix: str = field(init=False)
    gives_up: bool = field(default=False, init=False)
    """The server keeps more write-ahead log than the settings allow: the slot must go."""
    _recording: Recording = field(init=False)
    _queues: dict[str, StreamQueue] = field(init=False)
    _decoder: Decoder = field(default_factory=lambda: Decoder(id_of), init=False)
    _advanced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when nothing is in flight any more."""
    _leaving: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _batch: int = field(default=0, init=False)
    _read_to: int = field(default=0, init=False)
    """The end of the last whole transaction that was read."""
    _commit: int = field(default=0, init=False)
    """The commit of the transaction that began last."""
    _is_inside: bool = field(default=False, init=False)
    """Whether more of a transaction is to come."""
    _committed_at: float = field(default=0.0, init=False)
    _recorded: int = field(default=0, init=False)
    """How far everything is done, as far as the record says."""
    _waits_for_standby: bool = field(init=False)
    _asking: int = field(default=0, init=False)
    """Statements that are under way."""
    _asked: bool = field(default=False, init=False)
    """Whether to ask the server how far it is."""
    _on: tuple[int, int] = field(init=False)
    """The connections that the term began with, for heartbeats and questions."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.beginning.done)
        self._waits_for_standby = self.beginning.waits_for_standby
        self._read_to = self._recorded = self.beginning.done
        self.log, self._prefix = LogRecords(self.records.names), prefix_of(self.records.names)
        self._recording = Recording(self.records, self.settlements, self.lease.token, self.progress, self._settled)
        self._queues = {
            name: StreamQueue(worker, self._recording, self.options.worker, self.stopping)
            for name, worker in self.workers.items()
            if worker.queue.has_destination and not isinstance(worker.queue.destination, LongRunning)
        }
        self._on = self.heartbeats.connections, self.questions.connections
        self._extend(self.deadline)

    async def run(self) -> None:
        """Read until `leave`, or until the lease or a connection is lost. Raises `TermEnded` or `StreamBroken`."""
        connection = await ReplicationConnection.open(self.url)
        try:
            await connection.start(self.beginning.slot, self.slots.publication, self.beginning.done)
            self.began(self.beginning.slot)
            async with asyncio.TaskGroup() as group:
                parts = [
                    *(group.create_task(queue.run()) for queue in self._queues.values()),
                    group.create_task(self._beat()),
                    group.create_task(self._confirm(connection)),
                ]
                reading = group.create_task(self._read(connection))
                await self._leaving.wait()
                await self._until_idle()
                reading.cancel()
                await asyncio.gather(*(queue.finish() for queue in self._queues.values()))
                await self._until_idle()
                for part in parts:
                    part.cancel()
        except BaseExceptionGroup as errors:
            raise first_of(errors) from None
        finally:
            self._leaving.set()
            self._recording.ended = True
            self._extend(0.0)
            connection.close()

    async def _until_idle(self) -> None:
        """Wait until no statement is under way, which a cancellation would break off with its connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                while self._asking:  # noqa: ASYNC110 - it is a matter of milliseconds
                    await asyncio.sleep(A_MOMENT)

    def leave(self) -> None:
        """Read no more, and return when what is in flight is on record."""
        self._leaving.set()
        for queue in self._queues.values():
            queue.in_flight.stop_waiting()

    @property
    def known_until(self) -> int:
        """Nothing of what was committed at this place or later has been handed over."""
        return read_before(self.beginning.known_until, self._read_to, self._commit if self._is_inside else None)

    async def reached(self, place: int) -> bool:
        """Wait until everything before this place is settled or on record; False if the term ends before."""
        while self.progress.done < place and not self._leaving.is_set():
            self._asked = True
            self._advanced.set()
            await asyncio.sleep(ASKED_EVERY)
        return self.progress.done >= place

    async def _beat(self) -> None:
        """Renew the lease, and look at what the server keeps for the slot."""
        while True:
            await asyncio.sleep(self.options.heartbeat)
            self._asking += 1
            started = time.monotonic()
            done = self.progress.done
            renew = self.leadership.renew(self.lease.token, self.options.lane_lease, done)
            try:
                mode = await self.heartbeats.attempt(renew, self._on[0])
                slot = await self.heartbeats.attempt(self.slots.slot(self.beginning.slot), self._on[0])
                publication = await self.heartbeats.attempt(self.slots.publication_id(), self._on[0])
                self._waits_for_standby = await self.heartbeats.attempt(self.slots.waits_for_standby(), self._on[0])
            except Outage as outage:
                raise TermEnded(str(outage)) from outage
            finally:
                self._asking -= 1
            if mode is None:
                raise TermEnded(TAKEN)
            if slot is None:
                raise TermEnded(f"slot {self.beginning.slot} is gone")
            if publication != self.beginning.publication:
                raise StreamBroken("the publication was changed, and may not have shown all", UNDEFINED)
            self._recorded = done
            self._extend(started + self.options.lane_lease)
            behind = 0.0 if self.progress.is_idle else max(0.0, time.time() - self._committed_at)
            self.hook(StreamRead(self.options.worker, slot.held_bytes, behind))
            if self.most_wal is not None and slot.held_bytes > self.most_wal:
                self.gives_up = True
            if self.gives_up or mode is not Mode.STREAM:
                self.leave()
            self._asked = True  # an answer shows that the connection is alive, and how far an idle server is
            self._advanced.set()

    def _extend(self, deadline: float) -> None:
        for queue in self._queues.values():
            queue.in_flight.deadline = deadline

    async def _confirm(self, connection: ReplicationConnection) -> None:
        """Tell the server what it need not keep: only what is on record, with how far that is.

        So a slot that is further than the record says was made by somebody else, and may have left something out.
        """
        while True:
            await self._advanced.wait()
            self._advanced.clear()
            asked, self._asked = self._asked, False
            await connection.send(acknowledgement(self._recorded, time.time(), reply=asked))
            if not asked:
                await asyncio.sleep(CONFIRMED_EVERY)

    async def _read(self, connection: ReplicationConnection) -> None:
        most = max((worker.queue.batch for worker in self.workers.values()), default=1)
        read = 0
        while True:
            if MANY <= read < most and not self.progress.is_idle:
                await wait_for(self._quiet, GATHERING)
            try:
                async with asyncio.timeout(SILENT):
                    pieces = await connection.receive(most, MOST_BYTES)
            except TimeoutError as error:
                raise StreamBroken(f"the server has said nothing for {SILENT:g} s") from error
            read = len(pieces)
            await self._take_in(pieces)

    async def _take_in(self, pieces: Sequence[bytes]) -> None:  # noqa: C901 - one case for each change
        rows: list[StreamRow] = []
        passed = 0
        decode, known_until = self._decoder.decode, self.beginning.known_until
        for data in pieces:
            change = decode(data)
            if type(change) is StreamRow:
                rows.append(change)
            elif type(change) is LogMessage:
                rows += self._of_log(change)
            elif type(change) is Begin:
                if rows and self._commit < known_until <= change.commit:
                    await self._hand_over(rows)
                    rows = []
                self._commit, self._is_inside = change.commit, True
            elif type(change) is Commit:
                self._read_to, self._committed_at, self._is_inside = change.end, change.at, False
            elif type(change) is Keepalive:
                passed = 0 if self._is_inside else change.end
                if change.reply:
                    self._advanced.set()
        if rows:
            await self._hand_over(rows)
        else:
            self._begin_batch(0)
        if passed:
            self.progress.pass_by(passed)
            self._advanced.set()

    def _of_log(self, change: LogMessage) -> list[StreamRow]:
        """A message that is in the log alone; none if somebody else wrote it."""
        if change.prefix != self._prefix:
            return []
        try:
            return [row_of(change.place, change.content)]
        except msgspec.MsgspecError as error:
            self.hook(StreamChanged(self.options.worker, "skipped", f"a message that cannot be read: {error}"))
            return []

    def _settled(self) -> None:
        self._advanced.set()
        if self.progress.is_idle:
            self._quiet.set()

    def _begin_batch(self, messages: int) -> int:
        self._batch += 1
        self.progress.begin(self._batch, messages, self._read_to)
        self._quiet.clear()
        return self._batch

    async def _hand_over(self, rows: Sequence[StreamRow]) -> None:
        """Take rows, in the order of their commits, and have each sent, or recorded as a delivery."""
        is_known = self._commit < self.beginning.known_until
        if is_known:
            queues = self.beginning.queues | {row.queue for row in rows} | self._queues.keys()
            in_table = [(row.position, row.lane) for row in rows if row.position > 0]
            left = await self._ask(self.records.unrecorded(in_table, queues))
            there = await self._ask(self.log.there([row.columns[ID] for row in rows if row.position < 0]))
            rows = [row for row in rows if (row.position in left if row.position > 0 else row.columns[ID] not in there)]
        if self._waits_for_standby:
            await self._ask(_agreement())
        batch = self._begin_batch(len(rows))
        by_queue: dict[str, list[StreamRow]] = {}
        for row in rows:
            queue = row.queue
            if queue == DEFAULT_QUEUE and self.queue_of is not None:
                queue = self.queue_of(row.columns[TOPIC])
            by_queue.setdefault(queue, []).append(row)
        for name, some in by_queue.items():
            if name in self._queues:
                await self._to_queue(self._queues[name], some, batch, park=is_known and self.lease.interrupted)
            else:
                await self._elsewhere(name, some, batch)

    async def _to_queue(self, queue: StreamQueue, rows: Sequence[StreamRow], batch: int, *, park: bool) -> None:
        # Of what the last reader may have died of, this counts as a claim: after some, it is sent alone.
        claims = 2 if park else 1
        messages = self.records.reader.messages([row.columns for row in rows])
        claimed = [
            Claimed(row.position, row.lane, batch, 0, claims, message, row.size)
            for row, message in zip(rows, messages, strict=True)
        ]
        read = queue.failed_keys.next_read()
        try:
            hashes = {row.key_hash: row.lane for row in rows if row.key_hash is not None}
            held = await self._ask(self.records.held_keys(queue.name, hashes)) if hashes and not park else None
            fits = await queue.wait_for_room(len(claimed), alone=len(self._queues) == 1)
            queue.take(claimed)
            if park or not fits or queue.is_closed:
                queue.park(claimed)
                return
            waiting = queue.bound_for_table(claimed)
            if held is not None and held.is_any:
                waiting |= {row.position for row in rows if held.has(row.key_hash, row.lane)}
            if waiting:
                queue.park([one for one in claimed if one.position in waiting])
                claimed = [one for one in claimed if one.position not in waiting]
            queue.send(read, claimed)
        finally:
            queue.failed_keys.finished(read)

    async def _elsewhere(self, queue: str, rows: Sequence[StreamRow], batch: int) -> None:
        """Record messages of a queue that this relay does not serve, for whoever does."""
        deliveries = [
            NewDelivery(row.position, queue, 0, row.lane, row.key_hash, row.size, 0.0, 0, 0, "", "")
            for row in rows
            if row.position > 0
        ]
        of_log = self.records.reader.messages([row.columns for row in rows if row.position < 0])
        unsent = [UnsentOfLog(queue, msgspec.structs.replace(message, position=None), None) for message in of_log]
        await self._recording.write(NewReceipts(), deliveries, {batch: len(rows)}, unsent)

    async def _ask(self, steps: Steps[T]) -> T:
        self._asking += 1
        try:
            return await self.questions.attempt(steps, self._on[1])
        except Outage as outage:
            raise TermEnded(str(outage)) from outage
        finally:
            self._asking -= 1


ID = 6
TOPIC = 7
"""Where they are among a row's columns."""


def _agreement() -> Steps[None]:
    """A commit of our own: it waits for the standby, and so for all that was committed before it.

    The stream shows what still waits for it, and would be taken back if the standby took over now.
    """
    yield Query("SELECT pg_logical_emit_message(true, 'postroom', '')")


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the errors that ended tasks together."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
