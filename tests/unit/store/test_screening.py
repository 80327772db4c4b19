"""Screening: what is claimed and must not be sent is settled, and what must not be sent now is kept back."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from postroom.message import Message
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import ClaimLimits, Transition
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claim, Claimed, Dead, Expired, GivenBack, Settlement
from postroom.store.outbox.screening import Screening
from postroom.store.sql.rows import GONE
from postroom.store.sql.steps import Result, run

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.store.sql.steps import Query, Steps


class Written:
    """Notes what is settled, and loses some leases."""

    def __init__(self, *lost: Claimed) -> None:
        self.settlements: list[Settlement] = []
        self.lost = lost

    def settle(self, settlements: Sequence[Settlement]) -> Steps[list[Claimed]]:
        self.settlements += settlements
        yield from ()
        return list(self.lost)


def screened(written: Written, claimed: list[Claimed], expired: Collection[int] = ()) -> Claim:
    screening = Screening(cast("SettlementWriter", written), ClaimLimits(alone_after=1, dead_after=2))
    return run(screening.screen(claimed, expired), no_statement)


def no_statement(query: Query) -> Result:
    raise AssertionError(query.text)


def claimed(position: int, claims: int = 1, lane: int = NO_LANE, message: Message | None = None) -> Claimed:
    key = None if lane == NO_LANE else f"key of {lane}"
    return Claimed(position, lane, 7, 0, claims, message or Message.new("orders", {}, key=key))


def gone(position: int, lane: int = NO_LANE) -> Claimed:
    return claimed(position, lane=lane, message=msgspec.structs.replace(GONE, position=position))


def test_ordinary_messages_are_handed_out_and_nothing_is_settled() -> None:
    written, batch = Written(), [claimed(1), claimed(2)]
    assert screened(written, batch) == Claim(batch, [], 2)
    assert written.settlements == []


def test_what_has_expired_is_settled_and_not_handed_out() -> None:
    written, batch = Written(), [claimed(1), claimed(2)]
    assert screened(written, batch, {1}) == Claim([batch[1]], [Expired(batch[0])], 2, kept_back=[])


def test_what_has_no_message_is_dead_as_an_orphan() -> None:
    written, batch = Written(), [gone(1), claimed(2)]
    claim = screened(written, batch)
    assert claim.messages == [batch[1]]
    [dead] = claim.settled
    assert isinstance(dead, Dead)
    assert (dead.code, dead.attempted, dead.transition) == (Reason.MESSAGE_MISSING, False, Transition.ORPHAN)


def test_what_stands_behind_it_in_its_lane_is_kept_back_for_the_next_read() -> None:
    batch = [gone(1, lane=3), claimed(2, lane=3), claimed(3, lane=4)]
    claim = screened(Written(), batch)
    assert (claim.messages, claim.kept_back) == ([batch[2]], [batch[1]])


def test_what_was_claimed_too_often_is_dead_as_abandoned() -> None:
    [dead] = screened(Written(), [claimed(1, claims=3)]).settled
    assert isinstance(dead, Dead)
    assert (dead.code, dead.transition) == (Reason.LEASE_EXPIRED, Transition.ABANDON)


def test_a_suspect_is_sent_alone_and_the_others_are_given_back() -> None:
    written, batch = Written(), [claimed(1), claimed(2, claims=2)]
    claim = screened(written, batch)
    assert (claim.messages, claim.alone) == ([batch[1]], True)
    assert written.settlements == [GivenBack(batch[0])]


def test_a_message_of_a_lane_has_no_lease_to_give_back() -> None:
    written, batch = Written(), [claimed(1, lane=3), claimed(2, claims=2, lane=4)]
    claim = screened(written, batch)
    assert (claim.messages, claim.kept_back, written.settlements) == ([batch[1]], [batch[0]], [])


def test_what_was_lost_before_it_could_be_settled_is_not_told_as_settled() -> None:
    late = claimed(1)
    assert screened(Written(late), [late], {1}).settled == []
