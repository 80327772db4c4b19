"""What is nobody's business stays out of logs, metrics, probes and spans, whatever fails."""

from __future__ import annotations

import io
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from postroom import Consumer, Message, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.telemetry.events import all_of
from postroom.telemetry.health import Health
from postroom.telemetry.logs import structured
from postroom.telemetry.metrics import prometheus
from postroom.telemetry.traces import opentelemetry
from tests.acceptance.probing import started, wait_until
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

SECRETS = {
    name: f"hidden-{name}-7f3a"
    for name in ("payload", "header", "key", "idempotency", "aggregate", "database", "broker", "option")
}
QUOTING = """
def quoted(message):
    words = [message.payload.decode(), *message.headers.values(), message.key, message.aggregate_id]
    return f"cannot take {words} {getattr(message, 'idempotency_key', None)}"
"""
BROKER = f"""{QUOTING}
def publish(message):
    if message.topic == "sentence":
        return {{"status": "error", "reason_code": quoted(message)}}
    raise ValueError(quoted(message))
"""
CONSUMER = f"""{QUOTING}
from postroom import Consumer

consumer = Consumer("billing", BROKER, database=DATABASE, poll_interval_sec=0.05)

@consumer.handler(TOPIC, delays=[0], attempts=2)
def bill(connection, message):
    raise ValueError(quoted(message))
"""


def message(topic: str) -> Message:
    return Message.new(
        topic,
        {"card": SECRETS["payload"]},
        key=SECRETS["key"],
        headers={"authorization": SECRETS["header"]},
        idempotency_key=f"{SECRETS['idempotency']}-{topic}",
        aggregate_type="order",
        aggregate_id=SECRETS["aggregate"],
    )


def check(text: str) -> None:
    for name, secret in SECRETS.items():
        assert secret not in text, f"the {name} is in it"
    assert "hidden-" not in text


def test_V_2_processes_that_fail_tell_nothing_in_logs_metrics_and_probes(
    fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    topic = f"orders-{uuid4().hex}"
    nats = f"nats://shop:{SECRETS['broker']}@127.0.0.1:{need(Nats).port}?declare=true&stream={topic}&subjects={topic}"
    nobody = f"redis://:{SECRETS['option']}@127.0.0.1:9/0"
    database = fresh_database("postgresql").replace("postgres@", f"postgres:{SECRETS['database']}@")
    (tmp_path / "shop_broker.py").write_text(BROKER)
    application = CONSUMER.replace("BROKER", repr(nats)).replace("DATABASE", repr(database))
    (tmp_path / "application.py").write_text(application.replace("TOPIC", repr(topic)))
    with closing(Service(database)) as service:
        relaying = ("relay", "--database", database, "--broker", nats, "--backoff-sec", "0", "--max-attempts", "2")
        others = (
            "--broker-for",
            "fail*=python:shop_broker:publish",
            "--broker-for",
            "sentence=python:shop_broker:publish",
        )
        away = ("--broker-for", f"away={nobody}")
        with (
            started(tmp_path, *relaying, *others, *away) as relay,
            started(tmp_path, "consume", "--app", "application:consumer") as consumer,
        ):
            service.commit(message(topic), message("fail"), message("sentence"), message("away"))
            wait_until(lambda: service.status().dead == 3, lambda: relay.log() + consumer.log())
            wait_until(lambda: relay.problems() == ["the broker redis of topic:away cannot be reached"], relay.log)
            seen = [process.get(page)[1] for process in (relay, consumer) for page in ("/metrics", "/readyz", "/livez")]
            counters = [one for one in relay.metrics().items() if one[0][0] == "outbox_processed_total"]
            assert sum(count for (_, labels), count in counters if ("outcome", "outbox_flush_dead") in labels) == 2
            assert consumer.value("postroom_consumer_messages_total", {"consumer": "billing", "fate": "dead"}) == 1
            assert (relay.stop(), consumer.stop()) == (0, 0)
        assert relay.log().count('"outbox_flush_dead"') == 2
        assert consumer.log().count('"message_dead"') == 1
        check("\n".join([*seen, relay.log(), consumer.log()]))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_V_3_spans_logs_and_metrics_of_one_process_tell_nothing(kind: str, ready_database: FreshDatabase) -> None:
    log, registry, exporter, health = io.StringIO(), CollectorRegistry(), InMemorySpanExporter(), Health()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hook = all_of(structured(log), prometheus(registry), opentelemetry(provider), health)
    broker = MemoryBroker()

    def publish(one: Message) -> Any:
        if one.topic == "sentence":
            return {"status": "error", "reason_code": f"{one.payload!r} {one.headers} {one.key}"}
        raise ValueError(f"{one.payload!r} {one.headers} {one.key} {one.idempotency_key}")

    with closing(Service(ready_database(kind))) as service:
        consumer = Consumer("billing", broker, database=service.url, hook=hook, poll_interval_sec=0.02)

        @consumer.handler("orders", delays=[0], attempts=2)
        def bill(connection: Any, received: Any) -> None:
            connection.exec_driver_sql(f"SELECT '{SECRETS['payload']}' FROM no_such_table")
            assert received

        with provider.get_tracer("shop").start_as_current_span("place order"):
            service.commit(*(message(topic) for topic in ("orders", "fail", "sentence")))
        failing = {"fail": publish, "sentence": publish}
        policy = RetryPolicy.table([0], max_attempts=2)
        async with consumer:
            await Relay(service.url, broker, brokers=failing, hook=hook, policy=policy).run_until_empty()
            await wait_for(lambda: service.status().dead == 3)
    spans = [span.to_json() for span in exporter.get_finished_spans()]
    assert sum('"broker.send"' in span for span in spans) == 5
    assert sum('"process orders"' in span for span in spans) == 2
    assert '"error.type": "OTHER"' in "".join(spans)
    assert log.getvalue().count('"outbox_flush_dead"') == 2
    check("\n".join([log.getvalue(), generate_latest(registry).decode(), *spans, *health.not_ready()]))


@pytest.mark.parametrize("scheme", ["nats", "redis", "amqp", "kafka", "https"])
async def test_V_2_a_broker_that_is_away_is_named_with_the_reason_and_without_credentials(
    scheme: str, ready_database: FreshDatabase
) -> None:
    place = f"127.0.0.1:{free_port()}"
    options = {"kafka": "?sasl=PLAIN", "https": "?postroom.private=true"}.get(scheme, "")
    url = f"{scheme}://shop:{SECRETS['broker']}@{place}{options}"
    log = io.StringIO()
    with closing(Service(ready_database("sqlite"))) as service:
        service.commit(Message.new("orders", {}))
        await Relay(service.url, url, hook=structured(log)).run_once()
    [away] = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "broker_unreachable"]
    assert away["adapter"] == scheme
    assert away["broker"] == f"{scheme}://{place}"
    assert len(away["reason"]) > len(away["broker"])
    check(log.getvalue())
