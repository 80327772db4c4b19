"""What a relay's report says of brokers that are away."""

from __future__ import annotations

from postroom.relay import Report
from postroom.telemetry.events import DATABASE, Reachability


def test_a_broker_is_down_as_long_as_any_is() -> None:
    report = Report()
    report.count(Reachability("kafka", reachable=False, queue="topic:a"))
    report.count(Reachability("kafka", reachable=False, queue="topic:b"))
    report.count(Reachability("kafka", reachable=True, queue="topic:a"))
    assert (report.broker_down, report.queues_down) == (True, ["topic:b"])
    report.count(Reachability("kafka", reachable=True, queue="topic:b"))
    assert (report.broker_down, report.queues_down) == (False, [])


def test_the_database_is_no_broker() -> None:
    report = Report()
    report.count(Reachability(DATABASE, reachable=False))
    assert not report.broker_down
