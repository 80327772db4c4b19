"""How far a partition is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from postroom.sources.offsets import Offsets


def delivered(*offsets: int) -> Offsets:
    partition = Offsets()
    for offset in offsets:
        partition.deliver(offset)
    return partition


def state(partition: Offsets) -> tuple[int | None, int | None]:
    return partition.reached, partition.lowest


def test_only_what_has_no_gap_before_it_is_reached() -> None:
    partition = delivered(3, 4, 7)  # offsets between can be those of markers, or of what was compacted away
    assert state(partition) == (None, 3)
    partition.done(4)
    assert state(partition) == (None, 3)
    partition.done(3)
    assert state(partition) == (5, 7)
    partition.done(7)
    assert state(partition) == (8, None)


def test_what_is_put_back_is_out_no_more_and_comes_again() -> None:
    partition = delivered(1, 2, 3)
    partition.done(3)
    partition.rewind(2)
    partition.done(1)
    assert state(partition) == (2, None)
    partition.done(2)  # late, of the first delivery
    assert partition.reached == 2
    partition.deliver(2)
    assert partition.lowest == 2


@given(some.permutations(range(20)))
def test_done_in_any_order_all_is_reached_at_last_and_nothing_too_early(order: list[int]) -> None:
    partition = delivered(*range(20))
    done: set[int] = set()
    for offset in order:
        partition.done(offset)
        done.add(offset)
        assert set(range(partition.reached or 0)) <= done
    assert partition.reached == 20
