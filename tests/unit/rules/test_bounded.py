"""Counts that stop at a limit."""

from __future__ import annotations

from postroom.rules.bounded import BoundedCount


def test_a_count_says_whether_there_are_more() -> None:
    assert [str(BoundedCount.of(found, 10_000)) for found in (0, 9_999, 10_000, 10_001)] == [
        *("0", "9,999", "10,000", "10,000+")
    ]


def test_counts_add_up_and_there_are_more_if_there_are_more_of_one() -> None:
    assert BoundedCount.sum([]) == BoundedCount(0)
    assert BoundedCount.sum([BoundedCount(3), BoundedCount(10, more=True)]) == BoundedCount(13, more=True)


def test_a_count_is_a_number_and_is_true_if_there_is_anything() -> None:
    assert int(BoundedCount(7)) == 7
    assert [bool(one) for one in (BoundedCount(), BoundedCount(1), BoundedCount(0, more=True))] == [False, True, True]
