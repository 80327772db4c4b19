"""When messages of a topic that takes none come again: never many at once, however many wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.target_probes import LONGEST, PROBES, RATE, SOONEST, probe_times, recheck_time

moments = st.floats(0, 1e6)


def test_a_few_try_next_and_who_has_tried_stands_back() -> None:
    assert probe_times([], 1, 7.0, 2.0, tried=True) == [7.0]
    assert probe_times([7.0], 1, 7.0, 2.0, tried=True) == [9.0]
    assert probe_times([7.0], 1, 7.0, 2.0, tried=False) == [7.0]
    assert probe_times([7.0], 1000, 7.0, 2.0, tried=False) == [7.0] * (PROBES - 1)
    assert probe_times([7.0] * PROBES, 5, 7.0, 2.0, tried=False) == []


@given(st.lists(st.integers(1, 1000), max_size=300), moments)
def test_R_9_what_waits_comes_again_at_a_bounded_rate(batches: list[int], now: float) -> None:
    tail = 0.0
    for count in batches:
        later = recheck_time(tail, count, now)
        assert now + SOONEST <= later <= now + LONGEST
        assert later == now + LONGEST or later - max(tail, now + SOONEST) >= count / RATE * 0.999
        tail = later
