"""How fast a cleanup goes."""

from __future__ import annotations

import pytest

from postroom.rules.pacing import AIM, LEAST_ROWS, LONGEST_PAUSE, MOST_ROWS, Pace, after_batch


@pytest.mark.parametrize(
    ("rows", "took", "load", "pace"),
    [
        pytest.param(1000, AIM, 1, Pace(1000, 0), id="as it should be, without pauses"),
        pytest.param(1000, AIM / 1.5, 1, Pace(1500, 0), id="quick"),
        pytest.param(1000, AIM / 100, 1, Pace(2000, 0), id="very quick"),
        pytest.param(1000, 0, 1, Pace(2000, 0), id="no time at all"),
        pytest.param(1000, -1, 0.5, Pace(2000, 0), id="a clock that went back"),
        pytest.param(1000, AIM * 10, 0.5, Pace(500, AIM * 10), id="slow: as long a pause"),
        pytest.param(MOST_ROWS, AIM / 2, 1, Pace(MOST_ROWS, 0), id="no bigger"),
        pytest.param(LEAST_ROWS, 2, 1, Pace(LEAST_ROWS, 0), id="no smaller"),
        pytest.param(1000, AIM, 0.25, Pace(1000, AIM * 3), id="a quarter of the time"),
        pytest.param(1000, 60, 0.01, Pace(500, LONGEST_PAUSE), id="a pause has an end"),
    ],
)
def test_L_15_batches_are_short_and_pauses_in_proportion(rows: int, took: float, load: float, pace: Pace) -> None:
    found = after_batch(rows, took, load)
    assert found.rows == pace.rows
    assert found.pause == pytest.approx(pace.pause)


def test_L_15_the_size_settles_where_a_batch_takes_the_time_it_should() -> None:
    rows = 1000
    for _ in range(20):
        rows = after_batch(rows, rows / 40_000, 1).rows  # 40,000 rows a second
    assert rows == pytest.approx(40_000 * AIM, rel=0.01)
