"""Recovery as deliveries: one for each two-phase commit at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.rules.naming import TWOPHASE_QUEUE
from postroom.store.outbox.leases import Dead, Retry, Sent
from postroom.store.twophase.recovery_queue import RecoveryQueue, transaction_of
from tests.contract.store_drivers import Room, only_with_row_locks
from tests.contract.test_twophase_log import Holder, held_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postroom.store.outbox.leases import Claimed

FOR_EVER, NO_TIME = 1e9, 0.001  # seconds


@pytest.fixture
def holder(room: Room) -> Iterator[Holder]:
    with room.producer.session() as execute:
        holder = Holder(execute)
        holder.end(room.dialect.begin)
        yield holder


def add(room: Room, *txs: str, period: float = FOR_EVER) -> int:
    return room.run(RecoveryQueue(room.names, period=period).add(txs))


def claim(room: Room) -> list[Claimed]:
    return room.run(room.on(TWOPHASE_QUEUE).rows.claim("relay", 1000, 30)).messages


def transactions(claimed: Iterable[Claimed]) -> list[str]:
    return sorted(transaction_of(one.message) for one in claimed)


def test_each_transaction_is_delivered_once_at_a_time(room: Room) -> None:
    assert add(room, "b", "a", "a") == 2
    assert add(room, "b", "c", period=NO_TIME) == 1
    claimed = claim(room)
    assert transactions(claimed) == ["a", "b", "c"]
    assert add(room, "a", "b", "c", period=NO_TIME) == 0
    again, dead, done = sorted(claimed, key=lambda one: transaction_of(one.message))
    assert not room.run(
        room.on(TWOPHASE_QUEUE).settlements.settle([Retry(again, 60, "", ""), Dead(dead, "", ""), Sent(done)])
    )
    assert add(room, "a", "b") == add(room) == 0
    assert add(room, "c", period=NO_TIME) == 1  # it is needed again: a branch was prepared late
    assert transactions(claim(room)) == ["c"]


def test_what_was_delivered_is_not_added_again_in_the_same_period(room: Room) -> None:
    assert add(room, "a") == 1
    assert not room.run(room.on(TWOPHASE_QUEUE).settlements.settle(list(map(Sent, claim(room)))))
    assert add(room, "a") == 0
    assert add(room, "a", period=NO_TIME) == 1


def test_many_are_added_in_chunks_and_wake_a_relay(room: Room) -> None:
    txs = [f"{n:04}" for n in range(600)]
    assert room.run(RecoveryQueue(room.names, notify=True).add(txs)) == 600
    assert transactions(claim(room)) == txs


@only_with_row_locks
def test_of_two_that_add_at_once_one_does(room: Room, holder: Holder) -> None:
    queue = RecoveryQueue(room.names, period=FOR_EVER)
    assert holder.run(queue._add(["a", "b"])) == 2
    with held_up(room, queue.add(["a", "b"])) as result:
        holder.end("COMMIT")
        assert result() == 0


def test_messages_of_others_are_about_no_transaction(room: Room) -> None:
    room.add(queue=TWOPHASE_QUEUE, topic=TWOPHASE_QUEUE, aggregate_id="a")
    assert transactions(claim(room)) == [""]
