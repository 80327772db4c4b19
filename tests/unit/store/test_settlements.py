"""Settlements name their transitions, and every one of them leads from a message that is being sent."""

from __future__ import annotations

from typing import get_args

import pytest

from postroom.message import Message
from postroom.rules.lifecycle import State, Stored, Transition
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import (
    DEATHS,
    Claimed,
    Dead,
    Duplicate,
    Expired,
    Failure,
    GivenBack,
    Postponed,
    Receipt,
    Rerouted,
    Retry,
    Sent,
    Settlement,
)
from postroom.store.outbox.settlements import failure_fields, receipt_fields

CLAIMED = Claimed(1, NO_LANE, 7, 0, 1, Message.new("orders", {}))
EVERY: list[Settlement] = [
    Sent(CLAIMED),
    Duplicate(CLAIMED),
    Expired(CLAIMED),
    Retry(CLAIMED, 5, "CODE", "text"),
    Postponed(CLAIMED, 5, "CODE", "text"),
    GivenBack(CLAIMED),
    Rerouted(CLAIMED, "other"),
    *(Dead(CLAIMED, "CODE", "text", transition=one) for one in Transition if one in DEATHS),
]
each_settlement = pytest.mark.parametrize(
    "settlement", EVERY, ids=lambda one: f"{type(one).__name__}, {one.transition.name}"
)


def test_none_is_missing() -> None:
    assert {type(one) for one in EVERY} == {*get_args(Settlement)}


@each_settlement
def test_it_leads_from_sending(settlement: Settlement) -> None:
    assert State.SENDING in settlement.transition.sources
    assert Stored.READY in settlement.transition.stored  # what every statement that settles looks for


@each_settlement
def test_what_it_writes_is_what_its_transition_says(settlement: Settlement) -> None:
    target, becomes = settlement.transition.target, settlement.transition.becomes
    match settlement:
        case Sent() | Duplicate() | Expired():
            assert becomes is None
            outcome, _, _ = receipt_fields(settlement)
            assert target is (State.EXPIRED if outcome == "expired" else State.SENT)
        case Retry() | Postponed() | Dead():
            assert failure_fields(settlement).becomes == becomes
        case GivenBack() | Rerouted():
            assert (target, becomes) == (State.PENDING, Stored.READY)


def test_the_parts_of_the_union_are_told_apart_by_what_becomes_of_the_delivery() -> None:
    assert {one.transition.becomes for one in EVERY if isinstance(one, get_args(Receipt))} == {None}
    assert {one.transition.becomes for one in EVERY if isinstance(one, get_args(Failure))} == {
        Stored.RETRY,
        Stored.DEAD,
    }


@pytest.mark.parametrize("transition", [one for one in Transition if one not in DEATHS])
def test_what_is_dead_cannot_have_come_by_a_transition_that_leads_elsewhere(transition: Transition) -> None:
    with pytest.raises(ValueError, match=f"{transition.name} does not lead from sending to dead"):
        Dead(CLAIMED, "CODE", "text", transition=transition)
