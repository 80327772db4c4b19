"""Settling: each way, only under the lease, and what is lost is reported one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    GivenBack,
    Postponed,
    Retry,
    Sent,
    Settlement,
)
from tests.contract.store_drivers import Received, Room, on_one_driver_of_each_style, only_on, positions

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps

T = TypeVar("T")
Ending = Callable[[Claimed], Settlement]

ENDINGS: dict[str, Ending] = {
    "sent": Sent,
    "duplicate": Duplicate,
    "expired": Expired,
    "retry": lambda claimed: Retry(claimed, 60, "TIMEOUT", "no answer"),
    "postponed": lambda claimed: Postponed(claimed, 60, "TARGET_UNAVAILABLE", "no queue"),
    "dead": lambda claimed: Dead(claimed, "INVALID_TARGET", "no such topic"),
    "given back": GivenBack,
}
every_ending = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


def claim_one(room: Room, worker: str = "worker", seconds: float = 30) -> Claimed:
    [claimed] = room.claim(worker, 1, seconds)
    return claimed


def test_nothing_to_settle_loses_nothing(room: Room) -> None:
    assert room.settle() == []


def test_L_14_a_sent_message_leaves_a_receipt_and_no_delivery(room: Room) -> None:
    [position] = room.add()
    assert room.settle(Sent(claim_one(room), "offset 7", dedup=-5)) == []
    assert room.receipt(position) == Received("sent", 0, "offset 7", -5)
    assert room.find_delivery(position) is None
    assert room.ids([position])


@only_on("sqlite3", "pymysql")
def test_what_could_not_be_written_as_a_whole_was_not_written_in_part(room: Room) -> None:
    """Or else, when it is written again, what was sent would be told as lost."""
    room.add(count=2)
    sent, dead = room.claim()
    settlements: list[Settlement] = [Sent(sent), Dead(dead, "INVALID_TARGET", "no such topic")]
    with pytest.raises(ArithmeticError):
        room.run(interrupted(room.deliveries.settlements.write(settlements), "error_message"))
    assert room.receipt(sent.position) is None
    assert room.settle(*settlements) == []
    assert room.receipt(sent.position) == Received("sent", 0, None, None)


def interrupted(steps: Steps[T], at: str) -> Steps[T]:
    """Fail at the statement that contains this text."""
    query = next(steps)
    while True:
        try:
            query = steps.throw(ArithmeticError()) if at in query.text else steps.send((yield query))
        except StopIteration as end:
            return cast("T", end.value)


def test_L_14_a_receipt_counts_the_failed_attempts(room: Room) -> None:
    [position] = room.add()
    for _ in range(2):
        room.settle(Retry(claim_one(room), 0, "CODE", "text"))
    room.settle(Sent(claim_one(room)))
    assert room.receipt(position) == Received("sent", 2, None, None)


@pytest.mark.parametrize(("ending", "outcome"), [(Duplicate, "duplicate"), (Expired, "expired")])
def test_other_ways_to_be_done_leave_a_receipt_too(room: Room, ending: Ending, outcome: str) -> None:
    [position] = room.add()
    assert room.settle(ending(claim_one(room))) == []
    assert room.receipt(position) == Received(outcome, 0, None, None)
    assert room.find_delivery(position) is None


def test_L_7_a_failed_send_is_due_again_later(room: Room) -> None:
    [position] = room.add()
    claimed = claim_one(room)
    assert room.settle(Retry(claimed, 60, "TIMEOUT", "no answer in 2.5 s")) == []
    row = room.delivery(position)
    assert (row.state, row.attempts, row.claims) == (2, 1, 0)
    assert (row.error_code, row.error_message) == ("TIMEOUT", "no answer in 2.5 s")
    assert (row.token, row.owner, row.leased_until) == (0, "", None)
    assert row.failed_at is not None
    assert row.due is not None
    assert (row.due - row.failed_at).total_seconds() == pytest.approx(60, abs=0.002)
    assert room.claim() == []
    room.advance(50)
    assert room.claim() == []
    room.advance(11)
    again = claim_one(room)
    assert (again.attempts, again.claims) == (1, 1)
    assert room.delivery(position).state == 0


def test_L_7_delays_may_be_fractions_of_a_second_and_nothing_at_all(room: Room) -> None:
    first, second = room.add(2)
    room.settle(*(Retry(one, delay, "CODE", "") for one, delay in zip(room.claim(), (0.25, 0), strict=True)))
    row = room.delivery(first)
    assert row.due is not None
    assert row.failed_at is not None
    assert (row.due - row.failed_at).total_seconds() == pytest.approx(0.25, abs=0.002)
    assert second in positions(room.claim())


def test_L_7_code_and_message_are_cut_to_what_the_columns_hold(room: Room) -> None:
    [position] = room.add()
    room.settle(Retry(claim_one(room), 0, "C" * 100, "é\0" * 600))
    row = room.delivery(position)
    assert row.error_code == "C" * 64
    assert row.error_message == "é" * 512


def test_L_7_an_error_message_may_hold_anything(room: Room) -> None:
    [position] = room.add()
    text = "100% of :things, 'quoted' \"twice\" \\ ? $1 %s 😀"
    room.settle(Dead(claim_one(room), "CODE", text))
    assert room.delivery(position).error_message == text


def test_L_10_a_dead_message_is_kept_with_its_error(room: Room) -> None:
    [position] = room.add()
    assert room.settle(Dead(claim_one(room), "INVALID_TARGET", "no such topic")) == []
    row = room.delivery(position)
    assert (row.state, row.attempts, row.claims, row.token, row.owner) == (3, 1, 0, 0, "")
    assert (row.error_code, row.error_message) == ("INVALID_TARGET", "no such topic")
    assert row.failed_at is not None
    assert row.leased_until is None
    room.advance(100_000)
    assert room.claim() == []


def test_L_10_to_die_without_a_send_is_no_attempt(room: Room) -> None:
    [position] = room.add()
    room.settle(Dead(claim_one(room), "CODE", "text", attempted=False))
    assert room.delivery(position).attempts == 0


def test_L_7_giving_back_burns_nothing(room: Room) -> None:
    [position] = room.add()
    room.settle(Retry(claim_one(room), 0, "CODE", "text"))
    claim_one(room)
    room.advance(31)
    before = claim_one(room)
    assert (before.attempts, before.claims) == (1, 2)
    assert room.settle(GivenBack(before)) == []
    row = room.delivery(position)
    assert (row.state, row.attempts, row.claims) == (0, 1, 1)
    assert (row.token, row.owner, row.leased_until) == (0, "", None)
    assert claim_one(room, "another").claims == 2


@every_ending
def test_L_3_a_stale_token_settles_nothing(room: Room, ending: Ending) -> None:
    [position] = room.add()
    stale = claim_one(room, "slow")
    room.advance(31)
    fresh = claim_one(room, "quick")
    before = room.delivery(position)
    assert room.settle(ending(stale)) == [stale]
    assert room.delivery(position) == before
    assert room.receipt(position) is None
    assert room.settle(ending(fresh)) == []


@every_ending
def test_L_3_a_worker_cannot_settle_its_own_earlier_claim(room: Room, ending: Ending) -> None:
    [position] = room.add()
    earlier = claim_one(room, "worker")
    room.advance(31)
    later = claim_one(room, "worker")
    assert earlier.position == later.position
    before = room.delivery(position)
    assert room.settle(ending(earlier)) == [earlier]
    assert room.delivery(position) == before


@every_ending
def test_L_4_an_expired_lease_is_refused_even_if_nobody_claimed_again(room: Room, ending: Ending) -> None:
    [position] = room.add()
    claimed = claim_one(room)
    room.advance(31)
    before = room.delivery(position)
    assert room.settle(ending(claimed)) == [claimed]
    assert room.delivery(position) == before
    assert room.receipt(position) is None
    assert positions(room.claim("other")) == [position]


@every_ending
def test_a_settlement_cannot_be_repeated(room: Room, ending: Ending) -> None:
    room.add()
    claimed = claim_one(room)
    assert room.settle(ending(claimed)) == []
    assert room.settle(ending(claimed)) == [claimed]


def test_L_3_of_two_claims_of_one_message_in_a_batch_the_lost_one_is_lost(room: Room) -> None:
    [position] = room.add()
    earlier = claim_one(room)
    room.advance(31)
    later = claim_one(room)
    assert room.settle(Dead(earlier, "CODE", "text"), Sent(later, "the later one")) == [earlier]
    assert room.receipt(position) == Received("sent", 0, "the later one", None)
    assert room.positions() == []


def test_lost_ones_are_reported_one_by_one_and_the_others_settled(room: Room) -> None:
    added = room.add(2 * len(ENDINGS))
    claimed = room.claim("slow")
    room.advance(31)
    # Every second one is taken by somebody else, who keeps it; the first worker claims the rest again.
    others = {one.position: one for one in room.claim("quick")}
    room.settle(*(GivenBack(others[one]) for one in added[::2]))
    held = {one.position: one for one in room.claim("slow")}
    endings = list(ENDINGS.values())
    batch = [endings[n // 2](held.get(one.position, one)) for n, one in enumerate(claimed)]
    batch.reverse()
    lost = room.settle(*batch)
    assert positions(lost) == added[1::2]
    assert room.receipts() == dict(zip(added[0:6:2], ("sent", "duplicate", "expired"), strict=True))
    assert [room.delivery(one).state for one in added[6::2]] == [2, 2, 3, 0]
    assert [room.delivery(one).token for one in added[1::2]] == [others[one].token for one in added[1::2]]


def test_a_receipt_that_is_there_already_does_not_fail_the_batch(room: Room) -> None:
    added = room.add(3)
    room.select(
        "INSERT INTO {receipt} (position, outcome, attempts, answer) VALUES (:position, 'sent', 4, 'old')",
        position=added[1],
    )
    assert room.settle(*(Sent(one, "new") for one in room.claim())) == []
    assert [room.receipt(one) for one in added] == [Received("sent", 0, "new", None)] * 3
    assert room.positions() == []


def test_a_settlement_of_another_queue_finds_nothing(room: Room) -> None:
    room.add(queue="handlers")
    handlers = room.on("handlers")
    [claimed] = room.run(handlers.rows.claim("worker", 1, 30)).messages
    assert room.settle(Sent(claimed)) == [claimed]
    assert room.run(handlers.settlements.settle([Sent(claimed)])) == []


@on_one_driver_of_each_style
def test_thousands_are_settled_in_one_call(room: Room) -> None:
    added = room.add(2500)
    claimed = room.claim(limit=5000)
    sent = [Sent(one, f"offset {one.position}") for one in claimed[:2000]]
    failed = [Retry(one, 60, "CODE", "text") for one in claimed[2000:2200]]
    back = [GivenBack(one) for one in claimed[2200:]]
    assert room.settle(*sent, *failed, *back) == []
    assert list(room.receipts()) == added[:2000]
    assert room.positions(2) == added[2000:2200]
    assert room.positions(0) == added[2200:]
