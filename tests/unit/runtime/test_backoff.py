from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroom.runtime.backoff import Backoff

pauses = st.floats(min_value=0.001, max_value=100.0)


@given(first=pauses, longest=pauses, tries=st.integers(1, 30))
def test_pauses_double_up_to_the_longest(first: float, longest: float, tries: int) -> None:
    longest = max(first, longest)
    backoff = Backoff(first, longest)
    seen = [backoff.next() for _ in range(tries)]
    assert seen[0] == first
    assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(seen))


def test_pauses_start_over_when_it_has_worked() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    backoff.reset()
    assert backoff.next() == 0.5
