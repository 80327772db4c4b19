"""When a consumer asks its broker for more messages."""

from __future__ import annotations

import pytest

from postroom.rules.receiving import is_time_to_receive


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
