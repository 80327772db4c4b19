"""One trace, from the producer's span through outbox, relay and broker to the consumer, and on from there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from postroom import Consumer, Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.telemetry.traces import opentelemetry
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.nats import Nats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase


class Recorder:
    """A provider of its own, so that nothing of the process is changed."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def commit(self, service: Service, topic: str) -> Message:
        """A producer's span, in which a message is recorded."""
        with self.provider.get_tracer("shop").start_as_current_span("place order"):
            [message] = service.commit(Message.new(topic, {"order": 7}, key="7"))
        return message

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


SET_UP = """
import sys

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

figures = ConsoleMetricExporter(formatter=lambda data: data.to_json(None) + "\\n")
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(figures, export_interval_millis=3_600_000)]))
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(None) + "\\n")))
trace.set_tracer_provider(provider)

from postroom.cli import main

sys.exit(main(sys.argv[1:]))
"""
"""What OpenTelemetry's launcher does before it starts a program."""


@pytest.fixture(params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(request.param))) as service:
        yield service


def parent(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


async def test_V_3_one_trace_from_the_producer_to_the_consumer_and_on(service: Service) -> None:
    topic = f"orders-{uuid4().hex}"
    nats = f"nats://127.0.0.1:{need(Nats).port}?declare=true&stream={topic}&subjects={topic}"
    recorder = Recorder()
    hook = opentelemetry(recorder.provider)
    consumer = Consumer("billing", nats, database=service.url, hook=hook, poll_interval_sec=0.02)
    billed = MemoryBroker()

    @consumer.handler(topic)
    def bill(connection: Any, message: Message) -> None:
        Outbox().add(connection, "bills.created", message.json())

    recorder.commit(service, topic)
    await Relay(service.url, nats, hook=hook).run_once()
    async with consumer:
        await wait_for(lambda: f"process {topic}" in recorder.spans())
    await wait_for(lambda: service.status().pending)
    await Relay(service.url, billed).run_once()

    spans = recorder.spans()
    producer, process, send = spans["place order"], spans["outbox.process"], spans["broker.send"]
    handler = spans[f"process {topic}"]
    assert len({span.context.trace_id for span in (producer, process, send, handler)}) == 1
    assert parent(process) == producer.context.span_id
    assert parent(send) == process.context.span_id
    assert parent(handler) == producer.context.span_id
    assert (send.attributes or {})["messaging.system"] == "nats"
    [bill_of] = billed.messages
    trace_id, span_id = bill_of.headers["traceparent"].split("-")[1:3]
    assert (trace_id, span_id) == (f"{producer.context.trace_id:032x}", f"{handler.context.span_id:016x}")


async def test_V_3_a_handler_that_fails_is_tried_again_in_the_same_trace(service: Service) -> None:
    recorder = Recorder()
    hook = opentelemetry(recorder.provider)
    broker = MemoryBroker()
    consumer = Consumer("billing", broker, database=service.url, hook=hook, poll_interval_sec=0.02)
    tries: list[str] = []

    @consumer.handler("orders", delays=[0])
    async def bill(message: Message) -> None:
        tries.append(message.headers["traceparent"])
        await asyncio.sleep(0)
        if len(tries) < 3:
            raise ValueError(f"order {message.json()}")

    recorder.commit(service, "orders")
    await Relay(service.url, broker, hook=hook).run_once()
    async with consumer:
        await wait_for(lambda: len(tries) == 3)
    found = [span for span in recorder.exporter.get_finished_spans() if span.name == "process orders"]
    producer = recorder.spans()["place order"]
    assert [parent(span) for span in found] == [producer.context.span_id] * 3
    assert [(span.attributes or {}).get("error.type") for span in found] == ["ValueError", "ValueError", None]


def test_V_3_a_command_that_is_started_with_opentelemetry_set_up_makes_spans_and_counts(
    ready_database: FreshDatabase, tmp_path: Path
) -> None:
    (tmp_path / "shop_broker.py").write_text("def publish(message):\n    pass\n")
    with closing(Service(ready_database("sqlite"))) as service:
        sent = Recorder().commit(service, "orders")
        command = ["relay", "--once", "--database", service.url, "--broker", "python:shop_broker:publish"]
        ended = subprocess.run(
            [sys.executable, "-c", SET_UP, *command], cwd=tmp_path, capture_output=True, text=True, check=True
        )
    *spans, counted = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [span["name"] for span in spans] == ["broker.send", "outbox.process"]
    assert {span["context"]["trace_id"] for span in spans} == {f"0x{sent.headers['traceparent'].split('-')[1]}"}
    figures = counted["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    claimed = next(figure for figure in figures if figure["name"] == "outbox.claimed")
    assert [point["value"] for point in claimed["data"]["data_points"]] == [1]
