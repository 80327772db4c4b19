"""When a consumer asks its broker for more messages, for how many, and which of its workers get them."""

from __future__ import annotations

import pytest

from postroom.rules.receiving import Portions, is_time_to_receive, portions


@pytest.mark.parametrize(
    ("in_flight", "capacity", "is_anyone_idle", "expected"),
    [
        (0, 100, True, True),
        (99, 100, True, True),
        (51, 100, False, False),
        (50, 100, False, True),
        (0, 1, True, True),
        (1, 1, True, False),
        (100, 100, True, False),
    ],
)
def test_more_are_asked_for_when_half_are_done_or_somebody_waits(
    in_flight: int,
    capacity: int,
    is_anyone_idle: bool,  # noqa: FBT001 - a parameter
    expected: bool,  # noqa: FBT001 - a parameter
) -> None:
    assert is_time_to_receive(in_flight, capacity, is_anyone_idle=is_anyone_idle) is expected


@pytest.mark.parametrize(
    ("in_batches", "expected"), [(False, Portions(100, 100, together=1)), (True, Portions(100, 400, together=100))]
)
def test_where_all_handlers_take_batches_each_worker_gets_whole_ones(
    in_batches: bool,  # noqa: FBT001 - a parameter
    expected: Portions,
) -> None:
    assert portions(100, 4, in_batches=in_batches) == expected


def test_there_is_one_message_for_each_worker_however_small_the_batch() -> None:
    assert portions(1, 4, in_batches=False) == Portions(4, 4, together=1)


def test_what_is_received_together_is_shared_by_all_workers_unless_it_is_for_one() -> None:
    assert [portions(100, 4, in_batches=False).share(unkeyed, 4) for unkeyed in (1, 8, 80)] == [1, 1, 10]
    assert portions(100, 4, in_batches=True).share(80, 4) == 100
