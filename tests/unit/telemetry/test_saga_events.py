"""Events of sagas: what logs, metrics and traces make of them."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from postroom import Message
from postroom.rules.lifecycle import OutcomeCode
from postroom.rules.naming import SAGA_EVENT, SAGA_ID
from postroom.rules.saga_plan import Direction, SagaOutcome
from postroom.telemetry import (
    DATABASE,
    Beat,
    Counted,
    EndedSaga,
    EndedStep,
    Event,
    Lifecycle,
    Phase,
    Published,
    Reachability,
    SagaParked,
    SagasEnded,
    SagaSignalled,
    SagaStranded,
    SagaTurned,
    Settled,
    SignalEnd,
    StepEnd,
    StepsEnded,
    logs,
    metrics,
)
from postroom.telemetry.health import Health
from postroom.telemetry.running_spans import step_span
from postroom.telemetry.saga_queue import saga_queue_hook
from postroom.telemetry.traces import opentelemetry, tracer_of

CARD = "4111"


def declined(card: str) -> None:
    raise ValueError(f"card {card} at amqp://me:pw@host")


def failed_step() -> StepsEnded:
    try:
        declined(CARD)
    except ValueError as error:
        step = EndedStep("order-7", "charge", Direction.FORWARD, StepEnd.FAILED, 0.25, 3, "TIMEOUT", error)
        return StepsEnded("place_order", [step])
    raise AssertionError


def story() -> list[Event]:
    """A saga whose second step fails, and whose compensation fails, too; then one that completes."""
    done = EndedStep("order-7", "reserve", Direction.FORWARD, StepEnd.DONE, 0.018)
    retried = EndedStep("order-7", "charge", Direction.FORWARD, StepEnd.RETRY, 2.0, 1, f"no money on {CARD}")
    undone = EndedStep("order-7", "charge", Direction.BACK, StepEnd.SKIPPED)
    return [
        StepsEnded("place_order", [done, retried]),
        failed_step(),
        SagaTurned("place_order", "order-7", "charge", "TIMEOUT", CARD),
        StepsEnded("place_order", [undone]),
        SagaParked("place_order", "order-7", "reserve", Direction.BACK, "CONNECTION", CARD, 15),
        SagaStranded("place_order", "order-8", "pack", "STEP_MISSING", "keep pack under @place_order.retired"),
        SagaSignalled("place_order", "order-9", "parcel", SignalEnd.DELIVERED),
        SagasEnded(
            "place_order",
            [EndedSaga("order-9", SagaOutcome.COMPLETED, 4000), EndedSaga("order-6", SagaOutcome.COMPENSATED, 0.5)],
        ),
    ]


def logged(*events: Event, tracebacks: bool = False, level: str = "debug") -> list[dict[str, Any]]:
    stream = io.StringIO()
    hook = logs.structured(stream, level=level, tracebacks=tracebacks)
    for event in events:
        hook(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        del line["timestamp"]
    return lines


def test_V_2_each_event_of_a_saga_is_a_line_without_data() -> None:
    lines = logged(*story())
    assert CARD not in json.dumps(lines)
    assert [(line["level"], line["event"]) for line in lines] == [
        ("debug", "saga_step_done"),
        ("warning", "saga_step_retry"),
        ("warning", "saga_step_failed"),
        ("warning", "saga_turned"),
        ("debug", "saga_step_skipped"),
        ("error", "saga_parked"),
        ("error", "saga_stranded"),
        ("info", "saga_signal_delivered"),
        ("info", "saga_completed"),
        ("warning", "saga_compensated"),
    ]
    place = {"saga": "place_order", "saga_id": "order-7"}
    step = {**place, "step": "charge"}
    failed = {key: value for key, value in lines[2].items() if key not in {"level", "event"}}
    assert failed.pop("where").endswith(", in declined")
    took = {"direction": "forward", "attempts": 3, "took_ms": 250.0}
    assert failed == {**step, **took, "reason_code": "TIMEOUT", "error": "ValueError"}
    assert lines[1]["reason_code"] == "OTHER"  # a sentence may quote anything
    assert lines[3] == {"level": "warning", "event": "saga_turned", **step, "reason_code": "TIMEOUT"}
    parked = {**place, "step": "reserve", "direction": "back", "attempts": 15, "reason_code": "CONNECTION"}
    assert lines[5] == {"level": "error", "event": "saga_parked", **parked}
    assert lines[6]["cure"] == "keep pack under @place_order.retired"
    assert lines[8]["took_ms"] == 4_000_000


def test_V_2_the_traceback_of_a_step_is_written_if_wanted_without_passwords() -> None:
    [line] = logged(failed_step(), tracebacks=True)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: card 4111 at amqp://***@host")


def test_V_2_a_step_that_fails_in_code_is_written_to_pythons_log(caplog: pytest.LogCaptureFixture) -> None:
    hook = logs.with_tracebacks(None, True)  # noqa: FBT003 - a setting
    assert hook is not None
    with caplog.at_level(logging.WARNING, "postroom"):
        for event in story():
            hook(event)
    [record] = caplog.records
    text = record.getMessage()
    assert text.startswith("charge failed: saga=place_order saga_id=order-7 step=charge")
    assert "in declined" in text


def test_V_2_missing_code_is_reported_once_however_many_sagas_it_strands() -> None:
    stranded = [SagaStranded("place_order", f"order-{n}", "pack", "STEP_MISSING", "cure") for n in range(3)]
    other = SagaStranded("place_order", "order-0", "ship", "STEP_MISSING", "cure")
    assert [line["step"] for line in logged(*stranded, other)] == ["pack", "ship"]


@pytest.mark.parametrize(
    ("end", "level"), [(SignalEnd.LATE, "warning"), (SignalEnd.UNKNOWN, "warning"), (SignalEnd.DEAD, "error")]
)
def test_V_2_a_signal_that_nobody_gets_is_noticed(end: SignalEnd, level: str) -> None:
    [line] = logged(SagaSignalled("place_order", "order-7", "parcel", end))
    fields = {"saga": "place_order", "saga_id": "order-7", "signal": "parcel"}
    assert line == {"level": level, "event": f"saga_signal_{end}", **fields}


COUNTED = {
    'postroom_saga_steps_total{direction="forward",outcome="done",saga="place_order",step="reserve"} 1.0',
    'postroom_saga_steps_total{direction="forward",outcome="retry",saga="place_order",step="charge"} 1.0',
    'postroom_saga_steps_total{direction="forward",outcome="failed",saga="place_order",step="charge"} 1.0',
    'postroom_saga_steps_total{direction="back",outcome="skipped",saga="place_order",step="charge"} 1.0',
    'postroom_saga_step_seconds_count{direction="forward",saga="place_order",step="charge"} 2.0',
    'postroom_saga_step_seconds_sum{direction="forward",saga="place_order",step="charge"} 2.25',
    'postroom_saga_ended_total{outcome="completed",saga="place_order"} 1.0',
    'postroom_saga_ended_total{outcome="compensated",saga="place_order"} 1.0',
    'postroom_saga_duration_seconds_bucket{le="3600.0",outcome="completed",saga="place_order"} 0.0',
    'postroom_saga_duration_seconds_bucket{le="21600.0",outcome="completed",saga="place_order"} 1.0',
    'postroom_saga_turned_total{saga="place_order",step="charge"} 1.0',
    'postroom_saga_parked_total{saga="place_order",step="reserve"} 1.0',
    'postroom_saga_stranded_total{saga="place_order",step="pack"} 1.0',
    'postroom_saga_signals_total{outcome="delivered",saga="place_order"} 1.0',
    'postroom_sagas{saga="place_order",state="running"} 3.0',
    'postroom_sagas{saga="place_order",state="parked"} 0.0',
}


def test_V_1_sagas_and_steps_are_counted_by_name_and_outcome() -> None:
    registry = CollectorRegistry()
    hook = metrics.prometheus(registry)
    counted = Counted({}, {"place_order": {"running": 2, "parked": 1}}), Counted({}, {"place_order": {"running": 3}})
    for event in (*story(), *counted):
        hook(event)
    shown = generate_latest(registry).decode().splitlines()
    assert set(shown) >= COUNTED
    assert not any('direction="back"' in line for line in shown if "step_seconds" in line)  # skipped: it did not run


def test_V_1_opentelemetry_counts_the_same() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    hook = metrics.opentelemetry(provider)
    for event in story():
        hook(event)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    [point] = found["postroom.saga.turned"].data.data_points
    assert dict(point.attributes or {}) == {"saga": "place_order", "step": "charge"}
    assert {"postroom.saga.steps", "postroom.saga.step", "postroom.saga.ended", "postroom.saga.duration"} <= set(found)
    provider.shutdown()


class Recorder:
    """A provider that keeps its spans, and the hook on it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        self.hook = opentelemetry(provider)

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}


def test_V_3_steps_and_compensations_run_in_spans_of_the_starters_trace() -> None:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span("place order"):
        start = Message.new("saga:place_order")
    added = start
    for direction, attempt in ((Direction.FORWARD, 2), (Direction.BACK, 1)):
        span = step_span(
            "place_order",
            "reserve",
            direction,
            start.headers,
            id="order-7",
            attempt=attempt,
            tracer=tracer_of(recorder.hook),
        )
        with span:
            added = Message.new("bills")
    spans = recorder.spans
    origin = spans["place order"].context
    step, compensation = spans["step place_order.reserve"], spans["compensation place_order.reserve"]
    for one in (step, compensation):
        assert one.parent is not None
        assert (one.context.trace_id, one.parent.span_id) == (origin.trace_id, origin.span_id)
        assert one.status.status_code is StatusCode.UNSET
    assert dict(step.attributes or {}) == {
        "postroom.saga.name": "place_order",
        "postroom.saga.id": "order-7",
        "postroom.saga.step": "reserve",
        "postroom.saga.direction": "forward",
        "postroom.saga.attempt": 2,
    }
    assert added.headers["traceparent"].split("-")[2] == f"{compensation.context.span_id:016x}"


def test_V_3_a_step_that_fails_shows_the_kind_of_error_and_not_its_text() -> None:
    recorder = Recorder()
    span = step_span("place_order", "charge", Direction.FORWARD, {}, id="order-7", tracer=recorder.tracer)
    with pytest.raises(ValueError, match=CARD), span:
        declined(CARD)
    failed = recorder.spans["step place_order.charge"]
    assert (failed.status.status_code, failed.status.description, failed.events) == (StatusCode.ERROR, None, ())
    assert (failed.attributes or {})["error.type"] == "ValueError"


def test_the_hook_of_a_sagas_queue_leaves_out_what_its_worker_reports() -> None:
    seen: list[Event] = []
    hook = saga_queue_hook("place_order", seen.append)
    start = Message.new("saga:place_order", headers={SAGA_ID: "order-7"}, type="start")
    for quiet in (
        Phase("claim", 1, 0.1),
        Published("sagas", [start], 0.1, {}),
        Settled(OutcomeCode.SUCCESS, [start]),
        Settled(OutcomeCode.RETRY, [start], 1, "TIMEOUT"),
        Reachability("sagas", reachable=False),
    ):
        hook(quiet)
    assert seen == []
    hook(Beat("w1", "saga:place_order", True, 1, 3, "sagas", False))  # noqa: FBT003 - fields
    hook(Reachability(DATABASE, reachable=False))
    assert seen == [
        Beat("w1", "saga:place_order", True, 1, 3, "", True),  # noqa: FBT003 - fields
        Reachability(DATABASE, reachable=False),
    ]


def test_what_the_engine_gives_up_is_a_parked_saga_or_a_signal_that_found_none() -> None:
    seen: list[Event] = []
    start = Message.new("saga:place_order", headers={SAGA_ID: "order-7"}, type="start")
    signal = Message.new("saga:place_order", headers={SAGA_ID: "order-8", SAGA_EVENT: "parcel"}, type="signal")
    saga_queue_hook("place_order", seen.append)(Settled(OutcomeCode.DEAD, [start, signal], 2, "UNDECODABLE"))
    assert seen == [
        SagaParked("place_order", "order-7", "", Direction.FORWARD, "UNDECODABLE", "", 2),
        SagaSignalled("place_order", "order-8", "parcel", SignalEnd.DEAD),
    ]


def test_a_relay_that_runs_sagas_alone_is_ready_when_the_database_answers() -> None:
    health = Health()
    hook = saga_queue_hook("place_order", health)
    health(Lifecycle("w1", "started"))
    hook(Beat("w1", "saga:place_order", True, 1, 0, "sagas", False))  # noqa: FBT003 - fields
    assert (health.not_live(), health.not_ready()) == ([], [])
    hook(Beat("w1", "saga:place_order", False, 0, 0, "sagas", False))  # noqa: FBT003 - fields
    assert health.not_ready() == ["the database cannot be reached"]
