"""How long the ledger is tried, and how often."""

from __future__ import annotations

import pytest

from postroom.web.idempotency import retry_budget
from postroom.web.idempotency.retry_budget import SHORTEST, RetryBudget


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry_budget, "monotonic", clock)
    return clock


def test_the_first_attempt_leaves_time_for_another_one(clock: Clock) -> None:
    budget = RetryBudget(5.0, [0.1, 0.2])
    assert budget.attempt_seconds == pytest.approx(3.0)
    clock.now += 3.5
    assert budget.attempt_seconds == pytest.approx(1.5)
    clock.now += 1.4
    assert budget.attempt_seconds == SHORTEST


def test_it_is_spent_when_the_pauses_are_used_up(clock: Clock) -> None:
    del clock
    budget = RetryBudget(5.0, [0.1, 0.2])
    assert [budget.pause(), budget.is_spent(), budget.pause(), budget.is_spent()] == [0.1, False, 0.2, True]


def test_it_is_spent_when_the_time_left_is_shorter_than_the_pause(clock: Clock) -> None:
    budget = RetryBudget(5.0, [0.5])
    clock.now += 4.4
    assert not budget.is_spent()
    clock.now += 0.2
    assert budget.is_spent()
