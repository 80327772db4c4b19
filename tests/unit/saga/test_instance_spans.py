"""The spans of an instance: one for each attempt at a step or compensation, all in the trace of who started it."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from postroom import Message, Saga
from postroom.errors import Refused
from tests.unit.saga.runs import Runs


async def test_V_3_every_attempt_has_a_span_in_the_starters_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    saga = Saga("place_order")
    sent: list[str] = []

    @saga.step
    def reserve(saga: Any) -> None:
        if saga.attempt == 1:
            raise ConnectionError("4111")

    @reserve.compensation
    async def release(_saga: Any) -> None:
        sent.append(Message.new("released").headers["traceparent"])

    @saga.call
    async def charge(_saga: Any) -> None:
        raise Refused("NO_MONEY", "4111")

    with provider.get_tracer("shop").start_as_current_span("place order") as origin:
        runs = Runs(saga, tracer=provider.get_tracer("postroom"))
    await runs.until_settled()

    assert runs.outcome == "COMPENSATED"
    [producer, *spans] = exporter.get_finished_spans()
    assert producer.name == "place order"
    assert [(span.name, (span.attributes or {})["postroom.saga.attempt"]) for span in spans] == [
        ("step place_order.reserve", 1),
        ("step place_order.reserve", 2),
        ("step place_order.charge", 1),
        ("compensation place_order.reserve", 1),
    ]
    assert [(span.attributes or {}).get("error.type") for span in spans] == ["ConnectionError", None, "Refused", None]
    for span in spans:
        assert span.parent is not None
        assert span.parent.span_id == origin.get_span_context().span_id
        assert "4111" not in span.to_json()
    assert [one.split("-")[2] for one in sent] == [f"{spans[-1].context.span_id:016x}"]
