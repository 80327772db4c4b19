from __future__ import annotations

from postroom.delivery.held_lanes import HeldLane
from postroom.delivery.horizon import MOST, Horizon
from postroom.store.outbox.leases import NO_AGES, UNKNOWN_AGES, Ages, Lane


def test_what_was_reached_is_safe_when_all_have_ended_that_had_begun_by_then() -> None:
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5), furthest=10)
    assert horizon.safe(Ages(youngest=100, oldest=90), [lane]) == []
    lane.furthest = 20
    assert horizon.safe(Ages(youngest=110, oldest=99), [lane]) == []
    assert horizon.safe(Ages(youngest=120, oldest=100), [lane]) == [(lane, 10)]
    assert horizon.safe(Ages(youngest=130, oldest=125), [lane]) == [(lane, 20)]


def test_with_one_writer_all_is_safe_at_once_and_where_it_cannot_be_known_never() -> None:
    lane = HeldLane(Lane(3, 5), furthest=10)
    assert Horizon().safe(NO_AGES, [lane]) == [(lane, 10)]
    unknown = Horizon()
    assert [unknown.safe(UNKNOWN_AGES, [lane]) for _ in range(3)] == [[], [], []]


def test_while_a_transaction_stays_open_it_does_not_grow() -> None:
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5))
    for n in range(10 * MOST):
        lane.furthest = n
        assert horizon.safe(Ages(youngest=100 + n, oldest=50), [lane]) == []
    assert horizon.safe(Ages(youngest=10_000, oldest=9_000), [lane]) == [(lane, 10 * MOST - 1)]
