"""How long calls with suspects may fail."""

from __future__ import annotations

from postroom.delivery.suspects import Suspects
from postroom.delivery.trials import AT_ONCE, Trials
from postroom.message import Message
from postroom.rules.backoff import SHARE_OF_SUSPECTS
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claimed

ONE = Claimed(1, NO_LANE, 7, 0, 0, Message.new("t"))


class Line:
    """A line of batches, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.suspects = Suspects()
        self.trials = Trials(self.suspects, lambda: self.now)

    def call(self, seconds: float, *, fails: bool = True, reached: bool = True) -> None:
        with self.trials.trial(ONE):
            self.now += seconds
            if fails:
                self.suspects.strike([ONE], answered=reached)


def test_R_9_the_first_failure_of_a_message_is_no_trial() -> None:
    line = Line()
    line.call(1000)
    assert not line.trials.are_over()


def test_R_9_trials_that_fail_for_long_are_over_until_their_share_of_the_time_has_come() -> None:
    line = Line()
    line.call(1)
    line.call(10)
    assert line.trials.are_over()
    line.now += (10 - AT_ONCE) / SHARE_OF_SUSPECTS - 10 - 0.01
    assert line.trials.are_over()
    line.now += 0.02
    assert not line.trials.are_over()
    line.call(AT_ONCE)
    assert line.trials.are_over()
    assert line.trials.delays(3) == [1.0, 1.0 + AT_ONCE / SHARE_OF_SUSPECTS, 1.0 + 2 * AT_ONCE / SHARE_OF_SUSPECTS]


def test_R_9_only_failures_of_who_answered_count() -> None:
    line = Line()
    line.call(1)
    line.call(1000, fails=False)
    assert not line.trials.are_over()
    line.call(1000, reached=False)
    assert not line.trials.are_over(), "an outage"


def test_R_9_a_share_that_was_not_used_is_not_saved_up() -> None:
    line = Line()
    line.call(1)
    line.call(0.1)
    line.now += 10_000
    line.call(2 * AT_ONCE)
    assert line.trials.are_over()
