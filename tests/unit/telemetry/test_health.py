"""Health: what makes a process live, and what makes it ready."""

from __future__ import annotations

import pytest

from postroom.telemetry.events import Beat, Lifecycle, Phase, Reachability
from postroom.telemetry.health import STALLED, Health


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """Of a relay that is at work."""
    health = Health(clock)
    health(Lifecycle("w1", "started"))
    health(beat())
    return health


def beat(*, reached: bool = True, broker: str = "nats://u:secret@host", broker_reachable: bool = True) -> Beat:
    return Beat("w1", "default", reached, int(reached), 0, broker, broker_reachable)


def test_V_4_before_anything_is_started_it_lives_and_is_not_ready(clock: Clock) -> None:
    health = Health(clock)
    assert (health.not_live(), health.not_ready()) == ([], ["not started"])
    clock.now += STALLED + 1
    assert health.not_live() == ["no heartbeat"]


def test_V_4_at_work_it_is_ready_until_it_stops(health: Health) -> None:
    assert (health.not_live(), health.not_ready()) == ([], [])
    health(Phase("claim", 0, 0.1))
    health(Lifecycle("w1", "stopped"))
    assert health.not_ready() == ["not started"]


def test_V_4_without_a_heartbeat_it_does_not_live(health: Health, clock: Clock) -> None:
    clock.now += STALLED + 1
    assert health.not_live() == ["no heartbeat of default"]
    assert health.not_ready() == ["no heartbeat of default"]
    health(beat())
    assert health.not_ready() == []


def test_V_4_outages_make_it_not_ready_and_do_not_end_it(health: Health) -> None:
    health(Reachability("nats://u:secret@host", reachable=False, queue="default"))
    assert health.not_ready() == ["the broker nats of default cannot be reached"]
    health(beat(reached=False, broker_reachable=False))
    assert len(health.not_ready()) == 2
    assert health.not_ready()[1] == "the database cannot be reached"
    assert health.not_live() == []
    health(beat())
    assert health.not_ready() == []


def test_V_4_a_consumer_counts_with_its_broker_and_its_heart(clock: Clock) -> None:
    health = Health(clock)
    health(Lifecycle("w1", "started", "billing"))
    health(beat(broker=""))
    assert health.not_ready() == []
    health(Reachability("kafka://host", reachable=False))
    assert health.not_ready() == ["the broker kafka cannot be reached"]


def test_V_4_messages_that_have_no_broker_do_not_make_the_others_unready(health: Health) -> None:
    health(beat(broker="nowhere", broker_reachable=False))
    assert health.not_ready() == []
