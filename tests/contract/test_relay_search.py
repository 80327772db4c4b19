"""A search for what breaks order or loses messages: two relays' own parts, stepped one by one, on each database.

Producers, brokers that refuse, operators, expiry, broken connections, killed relays and failovers come in between, in
any order. The time of the database is moved; that of the relays stands nearly still, so that they also act as zombies.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from postroom.brokers.port import ACCEPTED, NOT_SENT, Capabilities, Outcome, Refused
from postroom.delivery import settler as settling
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.delivery.trials import Trials
from postroom.message import Message
from postroom.rules.backoff import RetryPolicy
from postroom.rules.lifecycle import ClaimLimits
from postroom.rules.ordering import Order
from postroom.store.admin.cancellation import Cancellation
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.message_filter import Filter
from postroom.store.connections.reconnecting import Database, Outage
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.workers import Workers
from postroom.store.sql.operations import DEFAULT_QUEUE
from tests.contract.store_drivers import Room, keys_of_lane, moment, only_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from postroom.brokers.port import Broker
    from postroom.delivery.lane_reader import LaneReader
    from postroom.store.connections.stores import ConnectionFactory, RunSteps
    from postroom.store.sql.steps import Steps

EXAMPLES = {"sqlite": 25, "postgresql": 10, "mariadb": 8}
STEPS = 60
HOUR = 3600.0
LEASE = 100 * HOUR
T = TypeVar("T")

FIRST, SECOND = (key for key, _ in zip(keys_of_lane(0), "12", strict=False))
KEYS = [FIRST, FIRST, SECOND]
PLAIN, LATER, SHORT_LIVED = (None, None, 1), (HOUR, None, 1), (None, HOUR / 2, 1200)
KINDS: st.SearchStrategy[tuple[float | None, float | None, int]] = st.sampled_from(
    [PLAIN, PLAIN, PLAIN, LATER, SHORT_LIVED, SHORT_LIVED]
)
"""Seconds until it is to be sent, and until it expires, and its bytes."""
FOREVER = ClaimLimits(alone_after=1000, dead_after=1001)
"""Nothing is ever sent alone: that would wait for what is in flight, which only the next step could bring down."""


class Store:
    """The room's store, on connections that can be cut."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.names = room.names
        self.cuts = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        since = self.cuts

        async def work(steps: Steps[T]) -> T:
            if since != self.cuts:
                raise ConnectionResetError("cut")
            return self._room.run(steps)

        yield work


@dataclass
class Added:
    """A message as the producer knows it."""

    id: UUID
    key: str
    scheduled: bool
    is_done: bool = False
    """Accepted, expired, cancelled or discarded."""


class Postbox:
    """A broker that refuses what it is told to, and sees to it that nothing comes before its time."""

    name = "postbox"

    def __init__(self, machine: Search, *, ordered_prefix: bool) -> None:
        self._machine = machine
        self.capabilities = Capabilities(ordered_prefix=ordered_prefix)
        self.refusals: list[str] = []
        """What the next messages are refused with; an empty text accepts one."""

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        outcomes: list[Outcome] = []
        for message in messages:
            code = self.refusals.pop(0) if self.refusals else ""
            if code:
                outcomes += [Refused(code, "no")]
                if self.capabilities.ordered_prefix:
                    return [*outcomes, *[NOT_SENT] * (len(messages) - len(outcomes))]
            else:
                self._machine.accept(message)
                outcomes += [ACCEPTED]
        return outcomes

    async def close(self) -> None:
        """Nothing to close."""


class Worker:
    """A relay whose parts work when they are told to."""

    def __init__(self, machine: Search, name: str) -> None:
        room = machine.room
        self.store = Store(room)
        self.broker = Postbox(machine, ordered_prefix=machine.ordered_prefix)
        self.queue = Queue(
            name=DEFAULT_QUEUE,
            destination=PublishToBroker(cast("Broker", self.broker)),
            batch=16,
            most_bytes=machine.most_bytes,
            policy=RetryPolicy.table((HOUR,), max_attempts=3),
        )
        database = Database(cast("ConnectionFactory", self.store), lambda _: None)
        self.parts = QueueWorker(
            queue=self.queue,
            options=EngineOptions(worker=name, poll_interval=HOUR, lease=LEASE, lane_lease=LEASE),
            store=room.on(order=machine.order, limits=FOREVER),
            workers=Workers(room.names),
            connections=ConnectionSet.full(database),
            stopping=asyncio.Event(),
            moved_to=lambda _: None,
        )
        self.readers = self.parts.pollers[2:]

    async def beat(self) -> None:
        with suppress(Outage):
            await self.parts.lease_keeper.beat()

    async def collect(self, *, due: bool, sweep: bool) -> None:
        in_flight = self.parts.in_flight
        for reader in self.readers:
            if len(in_flight) and in_flight.room < self.queue.batch:
                return  # it would wait for room
            cast("LaneReader", reader.source)._ask_at = 0.0
            if due:
                reader._due_at = 0.0
            if sweep:
                reader._sweeps.now()
            with suppress(Outage):
                await reader.collect()

    async def carry(self) -> None:
        for batches in [self.parts.unordered] * self.queue.concurrency + self.parts.ordered:
            if not batches.empty():
                await self.parts.attempt.run(batches.get_nowait(), Trials(self.parts.health.suspects))

    async def settle(self) -> None:
        await self.parts.settler.flush()


CHOICE = st.integers(0, 59)
"""Which one of what is there. Not drawn from that itself: what is there depends on how fast the machine is."""


def chosen(choice: int, options: Sequence[T]) -> T:
    return options[choice % len(options)]


class Search(RuleBasedStateMachine):
    """Whatever happens: each key's messages are accepted in order, and what has a receipt was accepted."""

    room: ClassVar[Room]

    @initialize(
        order=st.sampled_from(Order), most_bytes=st.sampled_from([1000, 10_000_000]), ordered_prefix=st.booleans()
    )
    def start(self, order: Order, most_bytes: int, *, ordered_prefix: bool) -> None:
        self.room.empty()
        self.order, self.most_bytes, self.ordered_prefix = order, most_bytes, ordered_prefix
        self.skipped: set[str] = set()
        """What was dead at some time, and is passed by on its key."""
        self.added: list[Added] = []
        self.accepted: set[UUID] = set()
        self.killed = 0
        self.overtaken = False  # not raised where it is seen: relays survive what a broker raises
        self.loop = asyncio.new_event_loop()
        self.workers = [Worker(self, "one"), Worker(self, "two")]
        for worker in self.workers:
            self.run(worker.beat())

    def run(self, what: Any) -> None:
        with patch.object(settling, "FIRST_PAUSE", 0.0):
            self.loop.run_until_complete(what)
        assert not self.overtaken, "a message has overtaken another of its key"

    # One rule for all, as in the store's state machine.
    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["add"] * 8
            + ["work"] * 12
            + ["pass_by"] * 5
            + ["collect", "carry", "settle"] * 3
            + ["time"] * 3
            + ["discard"] * 8
            + ["cancel"] * 3
            + ["beat", "cut", "kill", "fail_over", "requeue"]
        ),
    )
    def happens(self, data: st.DataObject, what: str) -> None:
        getattr(self, what)(data)

    # Producers

    def add(self, data: st.DataObject) -> None:
        self.add_some(data.draw(st.sampled_from(KEYS)), data.draw(st.lists(KINDS, min_size=1, max_size=4)))

    def add_some(self, key: str, kinds: Sequence[tuple[float | None, float | None, int]]) -> None:
        for later, expires, size in kinds:
            message = Message.new("t", "x" * size, key=key, deliver_at=moment(later), expires_at=moment(expires))
            self.room.add_messages([message])
            self.added.append(Added(message.id, key, scheduled=later is not None))

    # Relays

    def some_worker(self, data: st.DataObject) -> Worker:
        """Mostly the one who has the lane: the other has nothing to do."""
        holding = [worker for worker in self.workers if 0 in worker.parts.in_flight.lanes]
        return chosen(data.draw(CHOICE), [*holding * 4, *self.workers])

    def work(self, data: st.DataObject) -> None:
        """All that a relay does in one round, as it does most of the time."""
        worker = self.some_worker(data)
        for _ in range(2):
            self.collect_with(data, worker)
            self.carry_with(data, worker)
            self.run(worker.settle())
        self.check_receipts()

    def pass_by(self, data: st.DataObject) -> None:
        """One fails, others are added behind it, and the relay reads on with another key of its lane."""
        worker = self.some_worker(data)
        self.add_some(FIRST, [PLAIN])
        self.round(worker, data.draw(st.sampled_from(["TIMEOUT", "MESSAGE_TOO_LARGE"])))
        self.add_some(FIRST, data.draw(st.lists(KINDS, min_size=1, max_size=3)))
        self.add_some(SECOND, [PLAIN])
        for _ in range(2):
            self.round(worker)

    def round(self, worker: Worker, *refusals: str) -> None:
        self.run(worker.collect(due=False, sweep=False))
        worker.broker.refusals = list(refusals)
        self.run(worker.carry())
        self.run(worker.settle())

    def collect(self, data: st.DataObject) -> None:
        self.collect_with(data, self.some_worker(data))

    def collect_with(self, data: st.DataObject, worker: Worker) -> None:
        self.run(worker.collect(due=data.draw(st.booleans()), sweep=data.draw(st.integers(0, 19)) == 19))

    def carry(self, data: st.DataObject) -> None:
        self.carry_with(data, self.some_worker(data))

    def carry_with(self, data: st.DataObject, worker: Worker) -> None:
        codes = st.sampled_from(["", "", "", "", "TIMEOUT", "MESSAGE_TOO_LARGE"])
        worker.broker.refusals = data.draw(st.lists(codes, max_size=3))
        self.run(worker.carry())

    def settle(self, data: st.DataObject) -> None:
        self.run(self.some_worker(data).settle())
        self.check_receipts()

    def beat(self, data: st.DataObject) -> None:
        self.run(self.some_worker(data).beat())

    # What happens to them

    def time(self, data: st.DataObject) -> None:
        self.room.advance(data.draw(st.sampled_from([HOUR] * 7 + [2 * LEASE])))
        for worker in self.workers:
            self.run(worker.beat())

    def cut(self, data: st.DataObject) -> None:
        self.some_worker(data).store.cuts += 1

    def kill(self, data: st.DataObject) -> None:
        self.killed += 1
        self.workers[data.draw(st.integers(0, 1))] = Worker(self, f"new {self.killed}")

    def fail_over(self, data: st.DataObject) -> None:
        """The newest messages are gone, and their positions are given out again."""
        lost = data.draw(st.integers(1, 6))
        rows = self.room.select(f"SELECT position, id FROM {{outbox}} ORDER BY position DESC LIMIT {lost}")
        if not rows:
            return
        gone, first = {str(identifier) for _, identifier in rows}, min(position for position, _ in rows)
        for table in ("outbox", "delivery", "receipt"):
            self.room.select(f"DELETE FROM {{{table}}} WHERE position >= :first", first=first)
        self.room.count_on_from(first)
        self.added = [one for one in self.added if str(one.id) not in gone]
        for worker in self.workers:
            worker.store.cuts += 1

    # Operators

    def requeue(self, data: st.DataObject) -> None:
        self.note_skipped()
        self.room.run(DeadLetters(self.room.names).requeue(Filter(ids=self.some_ids(data))))

    def discard(self, data: st.DataObject) -> None:
        del data
        self.remove(self.room.run(DeadLetters(self.room.names).discard()).ids)

    def cancel(self, data: st.DataObject) -> None:
        choice = Filter(ids=self.some_ids(data))
        self.remove(self.room.run(Cancellation(self.room.names, self.order).cancel(choice)).ids)

    def some_ids(self, data: st.DataObject) -> list[UUID]:
        open_ones = [one.id for one in self.added if not one.is_done]
        choices = data.draw(st.lists(CHOICE, max_size=3))
        return list({chosen(choice, open_ones) for choice in choices}) if open_ones else []

    def remove(self, ids: Sequence[UUID]) -> None:
        for one in self.added:
            one.is_done = one.is_done or one.id in ids

    # What always holds

    def accept(self, message: Message) -> None:
        """The broker has it: nothing that had to leave before may be left."""
        if message.id not in {one.id for one in self.added}:
            return  # lost in a failover
        self.note_settled()
        self.note_skipped()
        for one in self.added:
            if one.id == message.id:
                one.is_done = True
                self.accepted.add(one.id)
                return
            if one.key == message.key and not one.is_done and not one.scheduled and str(one.id) not in self.skipped:
                self.overtaken = self.overtaken or message.id not in self.accepted

    def note_settled(self) -> None:
        expired = self.room.select(
            "SELECT m.id FROM {receipt} r JOIN {outbox} m ON m.position = r.position WHERE r.outcome = 'expired'"
        )
        gone = {str(identifier) for [identifier] in expired}
        for one in self.added:
            one.is_done = one.is_done or str(one.id) in gone

    def note_skipped(self) -> None:
        if self.order is Order.SKIP:
            rows = self.room.select(
                "SELECT m.id FROM {delivery} d JOIN {outbox} m ON m.position = d.position WHERE d.state = 3"
            )
            self.skipped |= {str(identifier) for [identifier] in rows}

    def check_receipts(self) -> None:
        sent = self.room.select(
            "SELECT m.id FROM {receipt} r JOIN {outbox} m ON m.position = r.position WHERE r.outcome = 'sent'"
        )
        assert {str(identifier) for [identifier] in sent} <= set(map(str, self.accepted)), "never sent"

    def teardown(self) -> None:
        """In the end everything arrives."""
        if not hasattr(self, "workers"):
            return
        try:
            for _ in range(12):
                self.note_skipped()
                self.room.run(DeadLetters(self.room.names).requeue())
                self.room.advance(2 * LEASE)
                for worker in self.workers:
                    worker.broker.refusals = []
                    self.run(worker.beat())
                for _ in range(6):
                    for worker in self.workers:
                        self.run(worker.collect(due=True, sweep=True))
                        self.run(worker.carry())
                        self.run(worker.settle())
                if not self.room.positions():
                    break
            self.check_receipts()
            self.note_settled()
            assert self.room.positions() == []
            assert [one for one in self.added if not one.is_done] == []
        finally:
            self.loop.close()


@only_on("sqlite3", "psycopg", "pymysql")
def test_L_16_order_and_completeness_whatever_happens(room: Room) -> None:
    class Machine(Search):
        pass

    Machine.room = room
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES[room.driver.kind],
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
