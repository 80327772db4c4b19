"""Traces: which spans an event makes, whose children they are, and what they say."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from postroom import Message
from postroom.consumer.tracing import continued
from postroom.errors import DriverMissing
from postroom.incoming import Incoming
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import (
    NOT_TRIED,
    UNREACHED,
    Event,
    Expired,
    Lifecycle,
    NotSettled,
    Phase,
    Published,
    Settled,
)
from postroom.telemetry.traces import opentelemetry, tracer_of

BROKER = "amqp://shop:s3cr3t@host"


class Recorder:
    """A provider that keeps its spans, and the hook on it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.hook = opentelemetry(self.provider)

    def message(self, topic: str = "orders.created") -> Message:
        """One that was added within a span."""
        with self.tracer.start_as_current_span("produce"):
            message = Message.new(topic, {"card": "4111"}, key="customer-1")
        return msgspec.structs.replace(message, created_at=datetime.now(UTC) - timedelta(seconds=3))

    def tell(self, *events: Event) -> None:
        for event in events:
            self.hook(event)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def published(*messages: Message, **failed: str) -> Published:
    return Published(BROKER, messages, 0.25, {int(index.removeprefix("n")): code for index, code in failed.items()})


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def seconds(span: ReadableSpan) -> float:
    return ((span.end_time or 0) - (span.start_time or 0)) / 1e9


def test_V_3_a_message_has_its_spans_in_the_producers_trace(recorder: Recorder) -> None:
    message = recorder.message()
    recorder.tell(published(message))
    assert recorder.named("outbox.process") == []  # not over before it is settled
    recorder.tell(Settled(OutcomeCode.SUCCESS, [message], broker=BROKER))
    [producer], [process], [send] = map(recorder.named, ("produce", "outbox.process", "broker.send"))
    assert process.context.trace_id == send.context.trace_id == producer.context.trace_id
    assert process.parent is not None
    assert send.parent is not None
    assert (process.parent.span_id, send.parent.span_id) == (producer.context.span_id, process.context.span_id)
    assert (send.kind, send.status.status_code) == (SpanKind.PRODUCER, StatusCode.UNSET)
    assert seconds(send) == pytest.approx(0.25, abs=0.01)
    assert process.end_time >= send.end_time  # type: ignore[operator]  # both are over
    about = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": "orders.created",
        "messaging.message.id": str(message.id),
        "postroom.adapter": "amqp",
    }
    sending = {"messaging.operation.name": "send", "messaging.operation.type": "send", "postroom.round_trip_ms": 250}
    assert attributes(send) == {**about, **sending}
    waited = attributes(process).pop("postroom.outbox.waited_seconds")
    assert waited == pytest.approx(2.75, abs=0.2)
    assert attributes(process)["postroom.outcome"] == "outbox_flush_success"
    assert attributes(process).items() >= about.items()


@pytest.mark.parametrize(("code", "shown"), [("TIMEOUT", "TIMEOUT"), ("card 4111 refused", "OTHER")])
def test_V_3_a_failed_send_says_why_in_a_word(recorder: Recorder, code: str, shown: str) -> None:
    message = recorder.message()
    recorder.tell(published(message, n0=code), Settled(OutcomeCode.RETRY, [message], 1, code, "card 4111"))
    for span in (*recorder.named("outbox.process"), *recorder.named("broker.send")):
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        assert (attributes(span)["error.type"], span.events) == (shown, ())


def test_V_3_messages_without_a_trace_share_one_of_the_batchs_own(recorder: Recorder) -> None:
    recorder.tell(published(Message.new("a"), Message.new("b"), recorder.message(), n1=UNREACHED))
    [process] = recorder.named("outbox.process")
    of_batch, of_one = sorted(
        recorder.named("broker.send"), key=lambda span: "messaging.message.id" in attributes(span)
    )
    assert process.parent is None
    assert of_batch.parent is not None
    assert of_batch.parent.span_id == process.context.span_id
    assert attributes(of_batch)["messaging.batch.message_count"] == 2
    assert attributes(of_batch)["error.type"] == UNREACHED
    assert "messaging.destination.name" not in attributes(of_batch)
    assert of_one.context.trace_id != of_batch.context.trace_id


def test_V_3_what_was_not_tried_has_no_span(recorder: Recorder) -> None:
    recorder.tell(published(recorder.message(), n0=NOT_TRIED), Phase("send", 1, 0.1))
    assert recorder.named("broker.send") == []


def test_V_3_what_is_not_sampled_makes_no_spans(recorder: Recorder) -> None:
    message = Message.new("orders", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"})
    recorder.tell(published(message), Settled(OutcomeCode.SUCCESS, [message]), Lifecycle("w1", "stopped"))
    assert recorder.named("outbox.process") == recorder.named("broker.send") == []


def test_V_3_every_way_to_end_ends_the_span(recorder: Recorder) -> None:
    messages = [recorder.message() for _ in range(4)]
    recorder.tell(published(*messages), published(messages[0]))  # given back, and sent again
    recorder.tell(
        Expired([messages[1]]), NotSettled(messages[2], "refused"), Settled(OutcomeCode.CONFLICT, [messages[0]])
    )
    recorder.tell(Settled(OutcomeCode.DEDUP_HIT, [recorder.message()]), Lifecycle("w1", "stopped"))
    outcomes = [attributes(span).get("postroom.outcome") for span in recorder.named("outbox.process")]
    assert outcomes == [None, "expired", "outbox_flush_db_error", "outbox_flush_conflict", None]


@pytest.mark.parametrize("outcome", [OutcomeCode.CONFLICT, OutcomeCode.DB_ERROR])
def test_V_3_what_failed_after_it_was_sent_has_an_error_too(recorder: Recorder, outcome: OutcomeCode) -> None:
    """The broker took it, and the lease was lost meanwhile, or the database would not write it down."""
    message = recorder.message()
    ended = NotSettled(message, "refused") if outcome is OutcomeCode.DB_ERROR else Settled(outcome, [message])
    recorder.tell(published(message), ended)
    [process], [send] = recorder.named("outbox.process"), recorder.named("broker.send")
    assert (process.status.status_code, process.status.description) == (StatusCode.ERROR, outcome.value)
    assert attributes(process)["error.type"] == outcome.value
    assert send.status.status_code is StatusCode.UNSET


def received(message: Message) -> Incoming:
    return Incoming(
        id=str(message.id), topic=message.topic, payload=None, content_type="text/plain", headers=message.headers
    )


def test_V_3_a_handler_runs_in_a_span_of_the_senders_trace(recorder: Recorder) -> None:
    message = recorder.message()
    with continued([received(message)], "billing", tracer_of(recorder.hook)):
        added = Message.new("bills")
    [producer], [process] = map(recorder.named, ("produce", "process orders.created"))
    assert process.parent is not None
    assert process.parent.span_id == producer.context.span_id
    assert added.headers["traceparent"].split("-")[1:3] == [
        f"{producer.context.trace_id:032x}",
        f"{process.context.span_id:016x}",
    ]
    assert process.kind is SpanKind.CONSUMER
    assert attributes(process) == {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "messaging.destination.name": "orders.created",
        "messaging.message.id": str(message.id),
    }


def test_V_3_a_handler_that_fails_shows_the_kind_of_error_and_not_its_text(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="4111"), continued([received(recorder.message())], "b", recorder.tracer):
        raise ValueError("card 4111")
    [span] = recorder.named("process orders.created")
    assert (attributes(span)["error.type"], span.status.description, span.events) == ("ValueError", None, ())


def test_V_3_several_messages_are_linked(recorder: Recorder) -> None:
    messages = [recorder.message(), recorder.message("orders.paid"), Message.new("orders.paid")]
    with continued([received(message) for message in messages], "billing", recorder.tracer):
        pass
    [span] = recorder.named("process")
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [one.context.span_id for one in recorder.named("produce")]
    assert attributes(span)["messaging.batch.message_count"] == 3


def test_V_3_where_nothing_is_configured_the_senders_context_goes_on(recorder: Recorder) -> None:
    message = recorder.message()
    with continued([received(message)]):
        added = Message.new("bills")
    assert added.headers["traceparent"] == message.headers["traceparent"]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(DriverMissing, match=r"postroom\[traces\]"):
        opentelemetry()


def test_a_hook_without_traces_has_no_tracer() -> None:
    assert tracer_of(None) is None
    assert tracer_of(print) is None
