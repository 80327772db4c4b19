"""Metrics: what each event adds to which figure."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from postroom import Message, Outbox, schema
from postroom.errors import DriverMissing
from postroom.incoming import Incoming
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import (
    Added,
    Backlog,
    Beat,
    Counted,
    Event,
    Expired,
    Handled,
    HookFailed,
    LeasesLost,
    Lifecycle,
    NotSettled,
    Phase,
    Postponed,
    Published,
    Reachability,
    Settled,
    StreamChanged,
    StreamRead,
    all_of,
    wants_counts,
)
from postroom.telemetry.gauges import Gauges
from postroom.telemetry.meters import BUCKETS
from postroom.telemetry.metrics import DELIVERY_BUCKETS, Metrics, opentelemetry, prometheus
from postroom.telemetry.topic_labels import MOST_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MESSAGE = Message.new("orders.created", {"order_id": 7}, key="customer-1", idempotency_key="order-7")
RECEIVED = Incoming(id="1", topic="orders.created", payload=None, content_type="application/json")


class Board:
    """A hook with a registry of its own, and what it shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.hook = prometheus(self.registry)

    def tell(self, *events: Event) -> Board:
        for event in events:
            self.hook(event)
        return self

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def board() -> Board:
    return Board()


def test_V_1_every_metric_is_there_from_the_beginning(board: Board) -> None:
    shown = generate_latest(board.registry).decode()
    for name in (
        "outbox_claimed_total",
        "outbox_processed_total",
        "outbox_retry_total",
        "outbox_lock_lease_expired_total",
        "outbox_latency_seconds",
        "outbox_backlog",
        "outbox_oldest_pending_seconds",
        "outbox_dead",
        "outbox_in_flight",
        "outbox_relay_alive",
    ):
        assert f"# HELP {name} " in shown
    assert "# HELP outbox_delivery_seconds " in shown


def test_V_1_the_counters_of_a_queue_and_of_a_topic_begin_at_zero(board: Board) -> None:
    board.tell(beat(queue="mail"), beat(queue="saga:place_order", broker=""))
    assert board.value("outbox_claimed_total", queue="mail") == 0
    assert board.value("outbox_leases_lost_total", queue="mail", kind="lane") == 0
    assert board.value("outbox_claimed_total", queue="saga:place_order") is None
    board.tell(Settled(OutcomeCode.SUCCESS, [MESSAGE], queue="mail"))
    for outcome in OutcomeCode:
        assert processed(board, outcome, queue="mail") == int(outcome is OutcomeCode.SUCCESS)


def processed(board: Board, outcome: OutcomeCode, topic: str = "orders.created", queue: str = "") -> float | None:
    return board.value("outbox_processed_total", queue=queue, topic=topic, outcome=outcome.value)


def test_V_1_a_message_is_timed_from_when_it_was_added_to_when_it_was_sent(board: Board) -> None:
    now = datetime.now(UTC)
    ages = (0.001, 0.3, 7200.0, -5.0)
    messages = [msgspec.structs.replace(MESSAGE, created_at=now - timedelta(seconds=age)) for age in ages]
    board.tell(
        Settled(OutcomeCode.SUCCESS, messages, queue="mail"),
        Settled(OutcomeCode.SUCCESS, messages[:1], queue="mail"),
        Settled(OutcomeCode.DEAD, messages, queue="mail"),
    )
    labels = {"queue": "mail", "topic": "orders.created"}
    assert board.value("outbox_delivery_seconds_count", **labels) == 5
    assert board.value("outbox_delivery_seconds_sum", **labels) == pytest.approx(7200.3, abs=60)
    assert board.value("outbox_delivery_seconds_bucket", **labels, le="3600.0") == 4
    assert board.value("outbox_delivery_seconds_bucket", **labels, le="21600.0") == 5
    assert board.value("outbox_delivery_seconds_bucket", **labels, le="+Inf") == 5


def test_V_1_topics_are_few_and_hold_no_ids(board: Board) -> None:
    numbered = [Message.new(f"orders.{n}") for n in range(500)]
    named = [Message.new(f"orders.{'x' * (n + 1)}") for n in range(200)]
    board.tell(Settled(OutcomeCode.SUCCESS, [*numbered, *named]), Settled(OutcomeCode.SUCCESS, named[:1]))
    shown = {
        sample.labels["topic"]: sample.value
        for family in board.registry.collect()
        for sample in family.samples
        if sample.name == "outbox_processed_total" and sample.labels["outcome"] == OutcomeCode.SUCCESS.value
    }
    assert len(shown) == MOST_TOPICS + 1
    assert shown["orders.*"] == 500
    assert shown["orders.x"] == 2
    assert shown["other"] == 200 - (MOST_TOPICS - 1)


def test_V_1_what_an_outbox_adds_is_counted_and_a_duplicate_is_not(board: Board, tmp_path: Path) -> None:
    schema.create(f"sqlite:///{tmp_path / 'shop.db'}")
    outbox = Outbox(brokers=["mail.*"], hook=board.hook)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        outbox.add_many(connection, [Message.new("mail.sent"), Message.new("mail.sent"), Message.new("orders.created")])
        for _ in range(2):
            outbox.add(connection, "orders.created", idempotency_key="once")
    assert board.value("outbox_added_total", queue="topic:mail.*", topic="mail.sent") == 2
    assert board.value("outbox_added_total", queue="topic:*", topic="orders.created") == 2


def test_an_outbox_whose_hook_fails_adds_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("not today")

    schema.create(f"sqlite:///{tmp_path / 'shop.db'}")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        Outbox(hook=broken).add(connection, "orders.created")
        assert connection.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (1,)
    assert "broken raised RuntimeError" in caplog.text


def test_V_1_claims_count_their_messages_and_those_taken_over(board: Board) -> None:
    board.tell(Phase("claim", 5, 0.02, 2, "mail"), Phase("claim", 1, 0.02, queue="mail"))
    assert board.value("outbox_claimed_total", queue="mail") == 6
    assert board.value("outbox_lock_lease_expired_total", queue="mail") == 2
    assert board.value("outbox_latency_seconds_count", queue="mail", phase="claim") == 2


@pytest.mark.parametrize("phase", ["claim", "send", "commit"])
def test_V_1_a_phase_is_a_batchs_latency_and_an_idle_look_is_none(board: Board, phase: str) -> None:
    board.tell(Phase(phase, 5, 0.3), Phase(phase, 0, 9.0))
    assert board.value("outbox_latency_seconds_sum", queue="", phase=phase) == pytest.approx(0.3)
    assert board.value("outbox_latency_seconds_bucket", queue="", phase=phase, le="0.25") == 0
    assert board.value("outbox_latency_seconds_bucket", queue="", phase=phase, le="0.5") == 1


@pytest.mark.parametrize("outcome", OutcomeCode)
def test_L_13_messages_are_counted_by_outcome(board: Board, outcome: OutcomeCode) -> None:
    board.tell(Settled(outcome, [MESSAGE, MESSAGE], 1))
    assert processed(board, outcome) == 2


def test_V_1_what_the_database_refuses_to_write_and_what_expires_is_counted(board: Board) -> None:
    board.tell(NotSettled(MESSAGE, "refused"), Expired([MESSAGE], "mail"))
    assert processed(board, OutcomeCode.DB_ERROR) == 1
    assert board.value("outbox_expired_total", queue="mail", topic="orders.created") == 1


@pytest.mark.parametrize(("attempts", "label"), [(1, "1"), (9, "9"), (10, "10+"), (1_000_000, "10+")])
def test_V_1_retries_are_counted_by_attempt_up_to_a_bound(board: Board, attempts: int, label: str) -> None:
    board.tell(Settled(OutcomeCode.RETRY, [MESSAGE], attempts, "TIMEOUT"))
    assert board.value("outbox_retry_total", queue="", attempt=label) == 1


def test_V_1_leases_that_were_lost_here_are_counted(board: Board) -> None:
    board.tell(LeasesLost(3, 1))
    assert board.value("outbox_leases_lost_total", queue="", kind="message") == 3
    assert board.value("outbox_leases_lost_total", queue="", kind="lane") == 1


def test_V_1_received_messages_are_counted_by_consumer_and_fate(board: Board) -> None:
    board.tell(
        Handled("billing", "handled", [RECEIVED, RECEIVED], seconds=0.2),
        Handled("billing", "parked", [RECEIVED], "TIMEOUT", 0.3),
        Handled("billing", "duplicate", [RECEIVED]),
    )
    for fate, count in {"handled": 2, "parked": 1, "duplicate": 1}.items():
        assert board.value("postroom_consumer_messages_total", consumer="billing", fate=fate) == count
    assert board.value("postroom_consumer_handler_seconds_count", consumer="billing") == 2


def beat(worker: str = "w1", **changes: object) -> Beat:
    facts: dict[str, object] = {
        "worker": worker,
        "queue": "default",
        "reached": True,
        "alive": 2,
        "in_flight": 30,
        "broker": "nats://user:pass@host",
        "broker_reachable": True,
        **changes,
    }
    return Beat(**facts)  # type: ignore[arg-type]  # each has its own


def test_V_4_a_heartbeat_shows_what_is_in_flight_and_who_is_alive(board: Board) -> None:
    board.tell(beat(), beat("w2", in_flight=12), Lifecycle("w3", "started"))
    assert board.value("outbox_in_flight", queue="default") == 42
    assert board.value("outbox_relay_alive", queue="default") == 2
    assert board.value("outbox_broker_up", adapter="nats", queue="default") == 1
    assert board.value("outbox_database_up") == 1
    board.tell(Lifecycle("w2", "stopped"))
    assert board.value("outbox_in_flight", queue="default") == 30


def test_V_4_only_the_reader_of_the_stream_shows_its_figures() -> None:
    now = [100.0]
    gauges = Gauges(clock=lambda: now[0])
    figures = ("outbox.stream_reader", "outbox.stream_held_bytes", "outbox.stream_behind")

    def shown() -> list[float | None]:
        read = gauges.read()
        return [read[name][0][1] if read[name] else None for name in figures]

    assert shown() == [None, None, None]
    gauges.listen(StreamRead("relay-1", 4096, 0.5))
    assert shown() == [1, 4096, 0.5]
    now[0] += 60
    assert shown() == [0, None, None], "it fell silent"
    gauges.listen(StreamRead("relay-1", 5000, 0.0))
    gauges.listen(StreamChanged("relay-1", "lost", "the lease was taken"))
    assert shown() == [0, None, None]
    gauges.listen(StreamRead("relay-2", 10, 0.0))
    assert shown() == [1, 10, 0.0]
    gauges.listen(Lifecycle("relay-2", "stopped"))
    gauges.listen(StreamChanged("relay-1", "closes", "1 lane is still held"))
    assert shown() == [None, None, None]
    gauges.listen(Counted({}, held_for_debezium=7))
    assert shown() == [None, 7, None], "Debezium's slot has no reader here"


def test_V_1_what_happens_to_the_stream_is_counted(board: Board) -> None:
    assert board.value("outbox_stream_changes_total", what="gave_up") == 0
    board.tell(StreamChanged("relay-1", "gave up", "too much"))
    assert board.value("outbox_stream_changes_total", what="gave_up") == 1


def test_V_4_outages_show(board: Board) -> None:
    board.tell(
        beat(),
        Reachability("nats://user:pass@host", reachable=False, queue="default"),
        Reachability("database", reachable=False),
    )
    assert board.value("outbox_broker_up", adapter="nats", queue="default") == 0
    assert board.value("outbox_database_up") == 0
    board.tell(beat(reached=False, alive=0, broker_reachable=False))
    assert board.value("outbox_relay_alive", queue="default") == 0


def test_V_4_a_heart_that_fell_silent_is_not_alive() -> None:
    now = 100.0
    gauges = Gauges(clock=lambda: now)
    gauges.listen(beat())
    assert gauges.read()["outbox.relay_alive"] == [(("default",), 2)]
    now += 8
    assert gauges.read()["outbox.relay_alive"] == [(("default",), 0)]


def test_V_1_the_backlog_is_shown_as_it_was_counted_and_a_queue_that_empties_is_zero(board: Board) -> None:
    assert board.value("outbox_backlog", queue="default", state="pending") is None
    board.tell(Counted({"default": Backlog(7, 3, 2, 12.5, 1)}))
    assert figures(board) == {"pending": 7, "waiting": 3, "dead": 2, "oldest": 12.5, "held": 1}
    board.tell(Counted({}))
    assert figures(board) == {"pending": 0, "waiting": 0, "dead": 0, "oldest": 0, "held": 0}
    assert (board.value("outbox_counted_timestamp_seconds") or 0) > 1_700_000_000


def figures(board: Board) -> Mapping[str, float | None]:
    return {
        "pending": board.value("outbox_backlog", queue="default", state="pending"),
        "waiting": board.value("outbox_backlog", queue="default", state="waiting"),
        "dead": board.value("outbox_dead", queue="default"),
        "held": board.value("outbox_held_keys", queue="default"),
        "oldest": board.value("outbox_oldest_pending_seconds", queue="default"),
    }


def test_events_that_are_no_figures_change_nothing(board: Board) -> None:
    before = generate_latest(board.registry)
    board.tell(HookFailed("on_dead", "ValueError"), Published("nats", [MESSAGE], 0.1, {}))
    assert generate_latest(board.registry) == before


def test_one_registry_has_one_hook_however_often_it_is_asked_for() -> None:
    registry = CollectorRegistry()
    assert prometheus(registry) is prometheus(registry)
    assert prometheus() is prometheus(REGISTRY)
    assert prometheus() is not prometheus(registry)


def test_only_who_shows_counts_has_them_counted(board: Board) -> None:
    assert wants_counts(all_of(all_of(print, board.hook), print))
    assert not wants_counts(all_of(print))
    assert not wants_counts(print)
    assert isinstance(board.hook, Metrics)


EVENTS = (
    Phase("claim", 5, 0.02, taken_over=2),
    Phase("send", 5, 0.3),
    Settled(OutcomeCode.RETRY, [MESSAGE], 12, "TIMEOUT"),
    Settled(OutcomeCode.SUCCESS, [msgspec.structs.replace(MESSAGE, created_at=datetime(2026, 1, 1, tzinfo=UTC))] * 2),
    Added([MESSAGE, MESSAGE], "default"),
    LeasesLost(3, 1),
    Expired([MESSAGE]),
    Postponed(5),
    NotSettled(MESSAGE, "refused"),
    Handled("billing", "handled", [RECEIVED, RECEIVED], seconds=0.2),
    beat(),
    Counted({"default": Backlog(7, 3, 2, 12.5)}),
)


def test_V_1_opentelemetry_is_told_the_same_as_prometheus(board: Board) -> None:
    reader = InMemoryMetricReader()
    hook = opentelemetry(MeterProvider([reader]))
    board.tell(*EVENTS)
    for event in EVENTS:
        hook(event)
    told = flattened(reader)
    shown = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in board.registry.collect()
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket", "_timestamp_seconds"))
        and (sample.value or not sample.name.startswith(("outbox_latency", "postroom_consumer")))
    }
    assert told == pytest.approx(shown, rel=1e-4)  # the clock goes on between the two


def flattened(reader: InMemoryMetricReader) -> dict[tuple[object, ...], float]:
    """What OpenTelemetry holds, by the names and labels that Prometheus would have."""
    found: dict[tuple[object, ...], float] = {}
    for metric in json.loads(reader.get_metrics_data().to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]:  # type: ignore[union-attr]  # there is some
        name = metric["name"].replace(".", "_") + ("_seconds" if metric["unit"] == "s" else "")
        for point in metric["data"]["data_points"]:
            labels = sorted(point["attributes"].items())
            if "bucket_counts" in point:
                expected = DELIVERY_BUCKETS if name.startswith("outbox_delivery") else BUCKETS
                assert point["explicit_bounds"] == list(expected)
                found |= {(f"{name}_count", *labels): point["count"], (f"{name}_sum", *labels): point["sum"]}
            elif not name.endswith("_timestamp_seconds"):
                found[f"{name}_total" if "is_monotonic" in metric["data"] else name, *labels] = point["value"]
    return found


def test_one_provider_has_one_hook_however_often_it_is_asked_for() -> None:
    provider = MeterProvider([InMemoryMetricReader()])
    assert opentelemetry(provider) is opentelemetry(provider)
    assert opentelemetry() is opentelemetry()
    assert opentelemetry() is not opentelemetry(provider)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(DriverMissing, match=r"postroom\[traces\]"):
        opentelemetry()


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(DriverMissing, match=r"postroom\[metrics\]"):
        prometheus()


def test_a_relay_loads_neither_prometheus_nor_opentelemetry_by_itself() -> None:
    program = (
        "import sys, postroom, postroom.consumer, postroom.telemetry.logs, postroom.relay, postroom.telemetry.traces\n"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
