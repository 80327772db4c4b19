"""What is seen of sagas that a relay runs: metrics by saga and state, one trace from the starter on, and logs."""

from __future__ import annotations

import io
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry, generate_latest

from postroom import Relay, RetryPolicy, Saga
from postroom.errors import Refused
from postroom.relay import backlog
from postroom.telemetry.events import all_of
from postroom.telemetry.health import Health
from postroom.telemetry.logs import structured
from postroom.telemetry.metrics import prometheus
from postroom.telemetry.traces import opentelemetry
from tests.acceptance.saga_support import Sagas
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.conftest import FreshDatabase

CARD = "4111"
ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy.table([0.01], max_attempts=2)


@pytest.fixture(params=["sqlite", "postgresql"])
def sagas(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Sagas]:
    with closing(Service(ready_database(request.param))) as service:
        yield Sagas(service)


@pytest.fixture(autouse=True)
def _count_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "EVERY", 0.05)
    monkeypatch.setattr(backlog, "SHARE", 0)


def place_order(*, with_parcel: bool = True) -> Saga[Any]:
    """Reserve, charge, wait for the parcel. What goes wrong is in the data."""
    saga: Saga[Any] = Saga("place_order")

    @saga.step(retry=TWICE)
    def reserve(saga: Any) -> None:
        if saga.data.get("slow") and saga.attempt == 1:
            raise ConnectionError(CARD)

    @reserve.compensation(retry=ONCE)
    async def release(saga: Any) -> None:
        if saga.data.get("stays"):
            raise ValueError(CARD)

    @saga.call
    async def charge(saga: Any) -> None:
        if saga.data.get("declined"):
            raise Refused("DECLINED", CARD)

    if with_parcel:

        @saga.wait("parcel", timeout=3600)
        def delivered(_saga: Any, _event: Any) -> None: ...

    return saga


class Watch:
    """All that a process can look at."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._log = io.StringIO()
        self.health = Health()
        self.hook = all_of(
            prometheus(self._registry), opentelemetry(self.provider), structured(self._log, level="debug"), self.health
        )

    def metrics(self) -> set[str]:
        return set(generate_latest(self._registry).decode().splitlines())

    def spans(self) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name != "outbox.process"]

    @property
    def log(self) -> str:
        return self._log.getvalue()

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.splitlines()) if line["event"] == event]


async def test_V_1_sagas_are_counted_by_name_and_state_and_steps_by_outcome(sagas: Sagas) -> None:
    watch, saga = Watch(), place_order()
    sagas.start(saga, "done", {"slow": True})
    sagas.signal(saga, "done", "parcel", {"n": 1})
    sagas.start(saga, "waits", {})
    sagas.start(saga, "undone", {"declined": True})
    sagas.start(saga, "stays", {"declined": True, "stays": True})
    expected = {
        'postroom_sagas{saga="place_order",state="waiting"} 1.0',
        'postroom_sagas{saga="place_order",state="parked"} 1.0',
        'postroom_saga_ended_total{outcome="completed",saga="place_order"} 1.0',
        'postroom_saga_ended_total{outcome="compensated",saga="place_order"} 1.0',
        'postroom_saga_duration_seconds_count{outcome="completed",saga="place_order"} 1.0',
        'postroom_saga_turned_total{saga="place_order",step="charge"} 2.0',
        'postroom_saga_parked_total{saga="place_order",step="reserve"} 1.0',
        'postroom_saga_signals_total{outcome="delivered",saga="place_order"} 1.0',
        'postroom_saga_steps_total{direction="forward",outcome="retry",saga="place_order",step="reserve"} 1.0',
        'postroom_saga_steps_total{direction="forward",outcome="done",saga="place_order",step="reserve"} 4.0',
        'postroom_saga_steps_total{direction="forward",outcome="failed",saga="place_order",step="charge"} 2.0',
        'postroom_saga_steps_total{direction="back",outcome="done",saga="place_order",step="reserve"} 1.0',
        'postroom_saga_steps_total{direction="back",outcome="failed",saga="place_order",step="reserve"} 1.0',
        'postroom_saga_step_seconds_count{direction="forward",saga="place_order",step="delivered"} 1.0',
        'outbox_backlog{queue="saga:place_order",state="waiting"} 1.0',
        'outbox_oldest_pending_seconds{queue="saga:place_order"} 0.0',
        'outbox_dead{queue="saga:place_order"} 1.0',
        'outbox_relay_alive{queue="saga:place_order"} 1.0',
    }
    async with Relay(sagas.service.url, sagas=[saga], hook=watch.hook, poll_interval_sec=0.05):
        await wait_for(lambda: expected <= watch.metrics())
        assert watch.health.not_ready() == []
    assert not any(line.startswith("outbox_processed_total") and not line.endswith(" 0.0") for line in watch.metrics())
    [parked] = watch.logged("saga_parked")
    assert (parked["saga_id"], parked["step"], parked["direction"], parked["level"]) == (
        *("stays", "reserve", "back"),
        "error",
    )
    [turned, _] = watch.logged("saga_turned")
    assert turned["reason_code"] == "DECLINED"
    [retried] = watch.logged("saga_step_retry")
    assert (retried["error"], retried["where"].rpartition(" ")[2]) == ("ConnectionError", "reserve")
    assert CARD not in watch.log


async def test_V_3_one_trace_from_the_starter_over_all_steps_and_compensations(sagas: Sagas) -> None:
    watch, saga = Watch(), place_order(with_parcel=False)
    with watch.provider.get_tracer("shop").start_as_current_span("place order") as origin:
        sagas.start(saga, "undone", {"slow": True, "declined": True})
    async with Relay(sagas.service.url, sagas=[saga], hook=watch.hook, poll_interval_sec=0.05):
        await sagas.ended(undone="compensated")
    [start, *spans] = watch.spans()
    assert start.name == "place order"
    assert [(span.name, (span.attributes or {})["postroom.saga.attempt"]) for span in spans] == [
        ("step place_order.reserve", 1),
        ("step place_order.reserve", 2),
        ("step place_order.charge", 1),
        ("compensation place_order.reserve", 1),
    ]
    failed = [span.status.status_code is StatusCode.ERROR for span in spans]
    assert failed == [True, False, True, False]
    for span in spans:
        assert span.parent is not None
        assert span.parent.span_id == origin.get_span_context().span_id
        assert span.context.trace_id == origin.get_span_context().trace_id
        assert CARD not in span.to_json()


async def test_V_1_sagas_that_miss_their_code_are_counted_and_the_cure_is_logged_once(sagas: Sagas) -> None:
    watch, before, after = Watch(), place_order(), place_order(with_parcel=False)
    for number in range(3):
        sagas.start(before, f"order-{number}", {})
    async with Relay(sagas.service.url, sagas=[after], hook=watch.hook, poll_interval_sec=0.05):
        await wait_for(lambda: 'postroom_sagas{saga="place_order",state="stranded"} 3.0' in watch.metrics())
    assert 'postroom_saga_stranded_total{saga="place_order",step="delivered"} 3.0' in watch.metrics()
    [line] = watch.logged("saga_stranded")
    assert line["reason_code"] == "STEP_MISSING"
    assert "retired" in line["cure"]
