"""Metrics of sagas. Labels are the names of sagas and steps, and closed sets: no ids, no codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from postroom.telemetry.meters import BUCKETS, SECONDS, Metric
from postroom.telemetry.saga_events import (
    SagaParked,
    SagasEnded,
    SagaSignalled,
    SagaStranded,
    SagaTurned,
    StepEnd,
    StepsEnded,
)

if TYPE_CHECKING:
    from postroom.telemetry.meters import Meters
    from postroom.telemetry.saga_events import SagaEvent

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
LONG_BUCKETS = (*BUCKETS[4:], _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY)
"""For whole sagas, which may wait for days."""

STEPS = Metric(
    "postroom.saga.steps",
    "Attempts at steps (forward) and compensations (back), by outcome.",
    ("saga", "step", "direction", "outcome"),
    "{attempt}",
)
STEP_DURATION = Metric(
    "postroom.saga.step",
    "Duration of a step or compensation that ran, including its transaction.",
    ("saga", "step", "direction"),
    SECONDS,
)
ENDED = Metric("postroom.saga.ended", "Sagas that ended, by outcome.", ("saga", "outcome"), "{saga}")
DURATION = Metric(
    "postroom.saga.duration",
    "Time from the start of a saga to its end.",
    ("saga", "outcome"),
    SECONDS,
    buckets=LONG_BUCKETS,
)
TURNED = Metric("postroom.saga.turned", "Sagas that failed and are compensated.", ("saga", "step"), "{saga}")
PARKED = Metric("postroom.saga.parked", "Sagas that were left to an operator.", ("saga", "step"), "{saga}")
STRANDED = Metric(
    "postroom.saga.stranded",
    "How often sagas were put back because the code that they need is missing.",
    ("saga", "step"),
    "{saga}",
)
SIGNALS = Metric("postroom.saga.signals", "Signals to sagas, by outcome.", ("saga", "outcome"), "{signal}")


class SagaMetrics:
    """Counts the events of sagas."""

    def __init__(self, meters: Meters) -> None:
        self._steps = meters.counter(STEPS)
        self._step_duration = meters.histogram(STEP_DURATION)
        self._ended = meters.counter(ENDED)
        self._duration = meters.histogram(DURATION)
        self._turned = meters.counter(TURNED)
        self._parked = meters.counter(PARKED)
        self._stranded = meters.counter(STRANDED)
        self._signals = meters.counter(SIGNALS)

    def count(self, event: SagaEvent) -> None:
        """Count an event."""
        match event:
            case StepsEnded():
                for one in event.steps:
                    direction = one.direction.name.lower()
                    self._steps(1, event.saga, one.step, direction, one.end.value)
                    if one.end is not StepEnd.SKIPPED:
                        self._step_duration(one.seconds, event.saga, one.step, direction)
            case SagasEnded():
                for ended in event.ended:
                    outcome = ended.outcome.name.lower()
                    self._ended(1, event.saga, outcome)
                    self._duration(ended.seconds, event.saga, outcome)
            case SagaTurned():
                self._turned(1, event.saga, event.step)
            case SagaParked():
                self._parked(1, event.saga, event.step)
            case SagaStranded():
                self._stranded(1, event.saga, event.step)
            case SagaSignalled():
                self._signals(1, event.saga, event.end.value)
            case _:
                assert_never(event)
