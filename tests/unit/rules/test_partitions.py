"""Partitions are there before they are needed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroom.rules.partitions import LEAST, MOST, Range, to_add

M = 1_000_000


@pytest.mark.parametrize(
    ("position", "end", "per_day", "added"),
    [
        pytest.param(1, 2 * M + 1, M, [], id="room for two days"),
        pytest.param(2, 2 * M + 1, M, [Range(2 * M + 1, 3 * M + 1)], id="a message less"),
        pytest.param(1, 1 + 1, 0, [Range(2, LEAST + 2), Range(LEAST + 2, 2 * LEAST + 2)], id="at first"),
        pytest.param(
            5 * M,
            3 * M,
            M,
            [Range(5 * M + M // 10, 6 * M + M // 10), Range(6 * M + M // 10, 7 * M + M // 10)],
            id="too late",
        ),
        pytest.param(1, 2 * MOST + 1, 10 * MOST, [], id="a partition has an end"),
    ],
)
def test_L_15_partitions_are_added_ahead(position: int, end: int, per_day: int, added: list[Range]) -> None:
    found = to_add(position, end, per_day)
    assert found == added
    assert all(one.end == next_one.start for one, next_one in pairwise(found))
