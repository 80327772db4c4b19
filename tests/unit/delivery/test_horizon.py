from __future__ import annotations

from postroom.delivery.held_lanes import HeldLane
from postroom.delivery.horizon import MOST, PATIENCE, Horizon
from postroom.store.outbox.leases import NO_AGES, UNKNOWN_AGES, Ages, Lane


def test_what_was_reached_is_safe_when_all_have_ended_that_had_begun_by_then() -> None:
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5), furthest=10)
    assert horizon.safe(Ages(youngest=100, oldest=90), [lane]).always == []
    lane.furthest = 20
    assert horizon.safe(Ages(youngest=110, oldest=99), [lane]).always == []
    assert horizon.safe(Ages(youngest=120, oldest=100), [lane]).always == [(lane, 10)]
    assert horizon.safe(Ages(youngest=130, oldest=125), [lane]).always == [(lane, 20)]


def test_with_one_writer_all_is_safe_at_once_and_where_it_cannot_be_known_never() -> None:
    lane = HeldLane(Lane(3, 5), furthest=10)
    assert Horizon().safe(NO_AGES, [lane]).always == [(lane, 10)]
    unknown = Horizon()
    assert [unknown.safe(UNKNOWN_AGES, [lane]).always for _ in range(3)] == [[], [], []]


def test_while_a_transaction_stays_open_it_does_not_grow() -> None:
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5))
    for n in range(10 * MOST):
        lane.furthest = n
        assert horizon.safe(Ages(youngest=100 + n, oldest=50), [lane]).always == []
    assert horizon.safe(Ages(youngest=10_000, oldest=9_000), [lane]).always == [(lane, 10 * MOST - 1)]


def test_a_transaction_that_stays_open_is_set_aside_until_it_ends() -> None:
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5))
    for n in range(PATIENCE):
        lane.furthest = n
        assert horizon.safe(Ages(100 + n, oldest=50, open=(50,), end=100 + n), [lane]) == ([], [])
        assert not horizon.set_aside
    lane.furthest = 20
    assert horizon.safe(Ages(120, oldest=50, open=(50, 104), end=110), [lane]) == ([], [(lane, 4)])
    assert horizon.set_aside == {50}
    assert horizon.safe(Ages(130, oldest=50, open=(50, 125), end=130), [lane]) == ([], [(lane, 20)])
    assert horizon.safe(Ages(140, oldest=135, open=(135,), end=140), [lane]) == ([(lane, 20)], [(lane, 20)])
    assert not horizon.set_aside


def test_where_all_transactions_stay_open_for_long_the_cursor_moves_on_all_the_same() -> None:
    """One that is set aside ends every moment, and reads fall back: not to where they were when this began."""
    horizon = Horizon()
    lane = HeldLane(Lane(3, 5))
    for n in range(100):
        lane.begin_read()
        open_ = tuple(range(1000 + n - 2 * PATIENCE, 1000 + n))
        safe = horizon.safe(Ages(1000 + n, open_[0], open_, end=1000 + n), [lane])
        lane.fall_back()
        lane.end_read(n, dict(safe.always).get(lane, 0), dict(safe.meanwhile).get(lane, 0))
    assert horizon.set_aside
    assert lane.cursor > 100 - 2 * PATIENCE - 3
    assert lane.ahead > 100 - PATIENCE - 3


def test_reads_start_ahead_of_the_cursor_until_they_fall_back() -> None:
    lane = HeldLane(Lane(3, 5))
    lane.end_read(10, safe=10)
    lane.begin_read()
    lane.end_read(30, safe=0, ahead=20)
    assert (lane.cursor, lane.ahead) == (10, 20)
    lane.read_again(16)
    assert (lane.cursor, lane.ahead) == (10, 15)
    lane.fall_back()
    assert (lane.cursor, lane.ahead) == (10, 10)
    lane.start_over()
    assert (lane.cursor, lane.ahead, lane.furthest) == (0, 0, 30)
