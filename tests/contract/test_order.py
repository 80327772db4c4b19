"""Order by key: what a failed, dead, scheduled or expired message does to those behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.rules.ordering import Order, key_hash, lane_of
from postroom.store.outbox.leases import Claimed, Dead, Expired, Retry, Sent
from tests.contract.store_drivers import Room, key_of_lane, keys_of_lane, positions

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Settlement
    from postroom.store.outbox.queue_store import QueueStore

every_order = pytest.mark.parametrize("order", Order)


class Worker:
    """Holds all lanes under one of the two orders."""

    def __init__(self, room: Room, order: Order = Order.HOLD) -> None:
        self.room = room
        self.protocol: QueueStore = room.on(order=order)
        self.lanes = room.run(self.protocol.lanes.take("worker", 3600))

    def read(self) -> list[Claimed]:
        return self.room.run(self.protocol.lanes.read(self.lanes, 1000, 3600)).messages

    def promote(self) -> list[int]:
        return sorted(self.room.run(self.protocol.lanes.promote(self.lanes)).values())

    def settle(self, *settlements: Settlement) -> None:
        assert self.room.run(self.protocol.settlements.settle(settlements)) == []

    def fail_first(self, delay: float = 60) -> None:
        self.settle(Retry(self.read()[0], delay, "CODE", "text"))

    def bury_first(self) -> None:
        self.settle(Dead(self.read()[0], "CODE", "text"))


def test_L_16_messages_of_a_key_leave_in_the_order_they_were_added(room: Room) -> None:
    keys = ["a", "b", "a", "c", "b", "a"]
    added = [position for key in keys for position in room.add(key=key)]
    worker = Worker(room)
    assert positions(worker.read()) == added


@every_order
def test_L_16_one_that_waits_for_its_retry_always_holds_its_key(room: Room, order: Order) -> None:
    failed, *behind = room.add(3, key="a")
    [other] = room.add(key="b")
    worker = Worker(room, order)
    worker.fail_first()
    assert positions(worker.read()) == [other]
    room.advance(61)
    assert positions(worker.read()) == [other]  # due, but not promoted yet
    assert worker.promote() == [failed]
    assert positions(worker.read()) == [failed, *behind, other]


def test_L_16_a_dead_one_holds_its_key_under_hold(room: Room) -> None:
    room.add(3, key="a")
    [other] = room.add(key="b")
    worker = Worker(room)
    worker.bury_first()
    assert positions(worker.read()) == [other]
    room.advance(1000)
    assert worker.promote() == []
    assert positions(worker.read()) == [other]


def test_L_16_a_dead_one_lets_its_key_pass_under_skip(room: Room) -> None:
    _, *behind = room.add(3, key="a")
    worker = Worker(room, Order.SKIP)
    worker.bury_first()
    assert positions(worker.read()) == behind


@every_order
def test_L_16_a_scheduled_one_never_holds_its_key(room: Room, order: Order) -> None:
    [scheduled] = room.add(key="a", deliver_in=60)
    ready = room.add(2, key="a")
    worker = Worker(room, order)
    assert positions(worker.read()) == ready
    room.advance(61)
    assert positions(worker.read()) == ready  # neither when it is due
    assert worker.promote() == [scheduled]
    assert positions(worker.read()) == [scheduled, *ready]


@every_order
def test_L_16_a_scheduled_one_waits_behind_a_failed_one(room: Room, order: Order) -> None:
    [failed] = room.add(key="a")
    room.add(key="a", deliver_in=60)
    worker = Worker(room, order)
    worker.fail_first(delay=600)
    room.advance(61)
    worker.promote()
    assert worker.read() == []
    room.advance(600)
    assert worker.promote() == [failed]
    assert worker.read()[0].position == failed


@every_order
def test_L_16_an_expired_one_holds_nobody(room: Room, order: Order) -> None:
    [expired] = room.add(key="a", expires_in=60)
    ready = room.add(2, key="a")
    worker = Worker(room, order)
    room.advance(61)
    claim = room.run(worker.protocol.lanes.read(worker.lanes, 10, 3600))
    assert claim.settled == [Expired(claim.settled[0].claimed)]
    assert positions(claim.messages) == ready
    assert room.receipts() == {expired: "expired"}


def test_L_16_only_what_stands_behind_is_held(room: Room) -> None:
    [before] = room.add(key="a")
    worker = Worker(room)
    [first] = worker.read()
    room.add(2, key="a")
    _, second, third = worker.read()
    worker.settle(Dead(second, "CODE", "text"))
    assert positions(worker.read()) == [before]
    worker.settle(Sent(first))
    assert worker.read() == []
    assert room.delivery(third.position).state == 0


def test_L_16_other_keys_of_the_same_lane_are_not_held(room: Room) -> None:
    one, other = (key for key, _ in zip(keys_of_lane(7), "12", strict=False))
    room.add(2, key=one)
    passing = room.add(2, key=other)
    worker = Worker(room)
    worker.fail_first()
    assert positions(worker.read()) == passing
    worker.bury_first()
    assert worker.read() == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("order-118409", "order-295518"), ("order-5797", "order-47139")],
    ids=["first 32 bits", "last 32 bits"],
)
def test_L_16_keys_that_share_32_bits_of_their_hash_are_strangers(room: Room, one: str, other: str) -> None:
    hashes = [key_hash(key) & (1 << 64) - 1 for key in (one, other)]
    assert hashes[0] >> 32 == hashes[1] >> 32 or hashes[0] % (1 << 32) == hashes[1] % (1 << 32)
    assert lane_of(hashes[0]) == lane_of(hashes[1])
    room.add(2, key=one)
    passing = room.add(2, key=other)
    worker = Worker(room)
    worker.bury_first()
    assert positions(worker.read()) == passing


@pytest.mark.parametrize("pair", [("A", "a"), ("a", "a "), ("é", "e"), ("é", "e\u0301")])
def test_L_16_keys_that_only_look_alike_are_strangers(room: Room, pair: tuple[str, str]) -> None:
    room.add(2, key=pair[0])
    [passing] = room.add(key=pair[1])
    worker = Worker(room)
    worker.bury_first()
    [claimed] = worker.read()
    assert (claimed.position, claimed.message.key) == (passing, pair[1])


def test_L_16_messages_without_a_key_are_held_by_nobody(room: Room) -> None:
    room.add(2, key="a")
    plain = room.add(3)
    worker = Worker(room)
    worker.bury_first()
    first, *rest = room.claim()
    room.settle(Dead(first, "CODE", "text"))
    assert positions(rest) == plain[1:]
    assert positions(worker.read()) == []


def test_L_16_everything_leaves_in_order_whatever_fails(room: Room) -> None:
    """A worker that fails every third send, over several keys, until nothing is left."""
    keys = [key_of_lane(n) for n in (1, 1, 2, 3)] + ["a", "b"]
    added: dict[str, list[int]] = {}
    for n in range(24):
        added.setdefault(keys[n % 6], []).extend(room.add(key=keys[n % 6]))
    worker = Worker(room)
    left: dict[str, list[int]] = {key: [] for key in added}
    sends = 0
    while room.positions():
        failed: set[str | None] = set()
        for one in worker.read():
            key = one.message.key
            if key is None or key in failed:
                continue
            sends += 1
            if sends % 3 == 0:
                failed.add(key)
                worker.settle(Retry(one, 60, "CODE", "text"))
            else:
                worker.settle(Sent(one))
                left[key].append(one.position)
        room.advance(61)
        worker.promote()
    assert left == added
