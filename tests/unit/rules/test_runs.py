"""Runs of positions: what is found as ranges, and what as a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.runs import SHORTEST, Run, runs


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        ([], []),
        ([7], [Run(7, 7)]),
        ([7, 8, 9], [Run(7, 9)]),
        ([7, 9], []),
        ([7, 7, 9], []),  # 8 is not among them
        ([1, 2, 3, 4, *range(6, 6 + 2 * SHORTEST)], [Run(1, 4), Run(6, 5 + 2 * SHORTEST)]),
        ([*range(1, 17), 18, *range(20, 36)], []),
        (list(range(1, 100, 2)), []),
    ],
)
def test_positions_are_found_as_ranges_unless_they_are_scattered(positions: list[int], found: list[Run]) -> None:
    assert runs(positions) == found


@given(st.sets(st.integers(min_value=1, max_value=300), min_size=1))
def test_runs_hold_exactly_the_positions_that_were_given(positions: set[int]) -> None:
    found = runs(sorted(positions))
    assert not found or sorted(positions) == [one for run in found for one in range(run.first, run.last + 1)]
    assert sum(run.size for run in found) in {0, len(positions)}
