"""A state machine: whatever workers, operators and time do, in any order, the store and a small model agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from postroom.rules.lifecycle import ClaimLimits, Stored
from postroom.rules.ordering import Order, waves
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.message_filter import Filter
from postroom.store.admin.retention import swept
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    GivenBack,
    Lane,
    Postponed,
    Retry,
    Sent,
    Settlement,
    new_token,
)
from tests.contract.store_drivers import Room, keys_of_lane, lost_by, only_on, positions
from tests.contract.store_model import Model, Unsent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

EXAMPLES = {"sqlite": 35, "postgresql": 15, "mariadb": 15}
STEPS = 50

MINUTE, HOUR = 60.0, 3600.0
LIMITS = ClaimLimits(alone_after=1, dead_after=2)
ONE, OTHER = (key for key, _ in zip(keys_of_lane(0), "12", strict=False))
KEYS = [None, None, ONE, OTHER, next(keys_of_lane(1))]

# A step takes a minute, of which an hour has more than an example has steps, and all else whole hours: moments that
# different steps made are never the same, and the seconds that really pass never decide which is the earlier one.
waits = st.sampled_from([0] * 6 + [HOUR, 2 * HOUR])
leases = st.sampled_from([HOUR, 8 * HOUR, 8 * HOUR])
limits = st.integers(1, 4)
endings: st.SearchStrategy[Callable[[Claimed], Settlement]] = st.sampled_from(
    [
        Sent,
        Duplicate,
        Expired,
        lambda one: Retry(one, 0, "CODE", "text"),
        lambda one: Retry(one, HOUR, "CODE", "text"),
        lambda one: Postponed(one, HOUR, "TARGET_UNAVAILABLE", "text"),
        lambda one: Dead(one, "CODE", "text"),
        lambda one: Dead(one, "CODE", "text", attempted=False),
        GivenBack,
    ]
)


class StoreMachine(RuleBasedStateMachine):
    """Each step lets some time pass, does the same to store and model, and compares what they answer."""

    room: ClassVar[Room]

    def __init__(self) -> None:
        super().__init__()
        self.claimed: list[Claimed] = []
        """All that was ever handed out: leases that hold, that have ended, that another has now."""
        self.lanes: list[Lane] = []
        self.ids: dict[int, UUID] = {}

    @initialize(order=st.sampled_from(Order), first=st.lists(st.sampled_from(KEYS), min_size=4, max_size=10))
    def start(self, order: Order, first: list[str | None]) -> None:
        self.room.empty()
        self.protocol = self.room.on(order=order, limits=LIMITS)
        self.dead_letters = DeadLetters(self.room.names)
        self.model = Model(order, LIMITS)
        for key in first:
            self.record(key)

    # One rule for all: with a rule for each, Hypothesis would leave most of them out of most examples, and hardly
    # ever would something be added, claimed, lost, claimed again and settled.
    @rule(
        data=st.data(),
        wait=waits,
        what=st.sampled_from(
            ["add"] * 3
            + ["claim"] * 3
            + ["take_lanes"] * 2
            + ["read_lanes"] * 3
            + ["pass_on_in_waves"] * 2
            + ["settle"] * 5
            + ["renew", "promote", "promote", "release", "forget"]
            + ["requeue", "requeue", "discard", "remove_settled"]
        ),
    )
    def happens(self, data: st.DataObject, wait: float, what: str) -> None:
        self.room.advance(MINUTE + wait)
        self.model.now += MINUTE + wait
        getattr(self, what)(data)

    # Producers

    def add(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(KEYS))
        later = data.draw(st.sampled_from([None, None, HOUR, 2 * HOUR]))
        expires = data.draw(st.sampled_from([None, None, 3 * HOUR]))
        for _ in range(data.draw(st.integers(1, 3))):
            self.record(key, later, expires)

    def record(self, key: str | None, later: float | None = None, expires: float | None = None) -> None:
        [position] = self.room.add(key=key, deliver_in=later, expires_in=expires)
        [self.ids[position]] = self.room.ids([position])
        one = self.model.unsent[position] = Unsent(position, key)
        if later is not None:
            one.state, one.due = Stored.SCHEDULED, self.model.now + later
        if expires is not None:
            one.expires = self.model.now + expires

    # Workers

    def claim(self, data: st.DataObject) -> None:
        limit, lease, token = data.draw(limits), data.draw(leases), new_token()
        claim = self.room.run(self.protocol.rows.claim("worker", limit, lease, token=token))
        assert positions(claim.messages) == self.model.claim(token, limit, lease)
        self.hand_out(claim.messages)

    def take_lanes(self, data: st.DataObject) -> None:
        limit, lease, token = data.draw(st.sampled_from([1, 2, 16])), data.draw(leases), new_token()
        taken = self.room.run(self.protocol.lanes.take("worker", lease, limit, token=token))
        assert [(lane.number, lane.interrupted) for lane in taken] == self.model.take_lanes(token, limit, lease)
        self.lanes += [lane for lane in taken if lane.number < 2]  # where the keys are

    def read_lanes(self, data: st.DataObject) -> None:
        lanes, limit, lease = self.some_lanes(data), data.draw(limits), data.draw(leases)
        in_flight = sorted(set(positions(self.some_claimed(data, ordered=True)))) if data.draw(st.booleans()) else []
        claim = self.room.run(self.protocol.lanes.read(lanes, limit, lease, in_flight=in_flight))
        assert positions(claim.messages) == self.model.read_lanes(lanes, limit, lease, in_flight)
        self.hand_out(claim.messages)
        for one in claim.messages:
            assert set(self.model.holding_back(one.position)) <= {*positions(claim.messages), *in_flight}

    def pass_on_in_waves(self, data: st.DataObject) -> None:
        """A worker that keeps the order: it sends in waves and drops what stands behind a failure."""
        lanes, limit = self.some_lanes(data), data.draw(limits)
        claim = self.room.run(self.protocol.lanes.read(lanes, limit, HOUR))
        assert positions(claim.messages) == self.model.read_lanes(lanes, limit, HOUR, ())
        failed: set[str | None] = set()
        for wave in waves(claim.messages, key_of):
            for one in wave:
                if key_of(one) in failed:
                    continue
                assert self.model.holding_back(one.position) == []
                ending = data.draw(endings)(one)
                self.settle_both([ending])
                if not isinstance(ending, Sent | Duplicate | Expired):
                    failed.add(key_of(one))

    def settle(self, data: st.DataObject) -> None:
        self.settle_both([data.draw(endings)(one) for one in self.some_claimed(data)])

    def settle_both(self, settlements: list[Settlement]) -> None:
        assert self.room.run(self.protocol.settlements.settle(settlements)) == self.model.settle(settlements)

    def renew(self, data: st.DataObject) -> None:
        claimed, lanes, lease = self.some_claimed(data, ordered=False), self.some_lanes(data), data.draw(leases)
        renewal = self.room.run(self.protocol.renewals.renew(claimed, lanes, lease))
        assert lost_by(renewal) == self.model.renew(claimed, lanes, lease)

    def promote(self, data: st.DataObject) -> None:
        lanes = self.some_lanes(data)
        assert self.room.run(self.protocol.lanes.promote(lanes)) == self.model.promote(lanes)

    def release(self, data: st.DataObject) -> None:
        lanes = self.some_lanes(data)
        self.room.run(self.protocol.lanes.release(lanes))
        self.model.release(lanes)

    def forget(self, data: st.DataObject) -> None:
        tokens = [one.token for one in self.some_claimed(data)] + [lane.token for lane in self.some_lanes(data)]
        if tokens:
            token = data.draw(st.sampled_from(tokens))
            self.room.run(self.protocol.recovery.forget(token))
            self.model.forget(token)

    # Operators

    def requeue(self, data: st.DataObject) -> None:
        positions, ids = self.some_ids(data)
        done = self.room.run(self.dead_letters.requeue(Filter(ids, queue=self.protocol.queue))).ids
        assert done == [self.ids[position] for position in self.model.requeue(positions)]

    def discard(self, data: st.DataObject) -> None:
        positions, ids = self.some_ids(data)
        done = self.room.run(self.dead_letters.discard(Filter(ids, queue=self.protocol.queue))).ids
        assert done == [self.ids[position] for position in self.model.discard(positions)]
        self.room.run(self.protocol.lanes.look_back(self.lanes))

    def remove_settled(self, data: st.DataObject) -> None:
        age = data.draw(st.sampled_from([0, 2 * HOUR]))
        assert self.room.run(swept(SettledMessages(self.protocol.names, age))) == self.model.remove_settled(age)

    # What always holds

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        rows = self.room.select("SELECT position, state, attempts, claims, token FROM {delivery} ORDER BY position")
        unsent = sorted(self.model.unsent.values(), key=lambda one: one.position)
        assert rows == [(one.position, one.state, one.attempts, one.claims, one.token) for one in unsent]
        assert self.room.receipts() == {position: outcome for position, (outcome, _) in self.model.settled.items()}

    @invariant()
    def everybody_sees_the_same_states(self) -> None:
        assert self.room.statuses() == self.model.statuses()

    @invariant()
    def nothing_is_held_twice(self) -> None:
        held = {one.lease for one in self.claimed if self.model.holds(one)}
        assert len({position for position, _ in held}) == len(held)

    # What a step acts on

    def hand_out(self, messages: Sequence[Claimed]) -> None:
        assert all(map(self.model.holds, messages))
        self.claimed += messages

    def some_claimed(self, data: st.DataObject, *, ordered: bool | None = None) -> list[Claimed]:
        """A few claims, each lease once, most of them held."""
        all_of = list({one.lease: one for one in self.claimed if ordered in (None, one.ordered)}.values())
        held = [one for one in all_of if self.model.holds(one)]
        return _some(data, held, [one for one in all_of if one not in held], lambda one: one.lease)

    def some_lanes(self, data: st.DataObject) -> list[Lane]:
        """A few leases on lanes, of each lane one, most of them held; one worker's or several's."""
        if not self.lanes:
            self.take_lanes(data)
        held = [lane for lane in self.lanes if lane.token == self.model.lanes[lane.number].token]
        return _some(data, held, [lane for lane in self.lanes if lane not in held], lambda lane: lane.number)

    def some_ids(self, data: st.DataObject) -> tuple[list[int], list[UUID] | None]:
        """All messages, for which no ids are given, or a few."""
        if not self.ids or data.draw(st.booleans()):
            return list(self.ids), None
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.ids)), min_size=1, unique=True))
        return chosen, [self.ids[position] for position in chosen]


def _some(data: st.DataObject, held: list[Any], lost: list[Any], by: Callable[[Any], object]) -> list[Any]:
    pool = [*held, *held, *held, *lost[-max(1, len(held)) :]]
    if not pool:
        return []
    return data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4, unique_by=by))


def key_of(claimed: Claimed) -> str | None:
    return claimed.message.key


@only_on("sqlite3", "psycopg", "pymysql")
def test_the_store_behaves_like_the_model(room: Room) -> None:
    class Machine(StoreMachine):
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
