from __future__ import annotations

from postroom.delivery.sweeps import SHARE, Sweeps


def test_the_first_sweep_is_due_at_once_and_the_next_after_the_shortest_pause() -> None:
    now = [100.0]
    sweeps = Sweeps(0.5, lambda: now[0])
    assert sweeps.due()
    sweeps.done(0.001)
    assert not sweeps.due()
    now[0] += 0.5
    assert sweeps.due()


def test_a_sweep_that_takes_long_is_rare_unless_something_was_missed() -> None:
    now = [100.0]
    sweeps = Sweeps(0.5, lambda: now[0])
    sweeps.done(2.0)
    now[0] += SHARE * 2.0 - 0.1
    assert not sweeps.due()
    sweeps.now()
    assert sweeps.due()
