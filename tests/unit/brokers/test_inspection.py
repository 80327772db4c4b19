from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from postroom.brokers.inspection import kafka, rabbitmq
from postroom.brokers.inspection.http import HttpInspector
from postroom.rules.checks.brokers import Place


def metadata(*replicas: int) -> SimpleNamespace:
    return SimpleNamespace(partitions={n: SimpleNamespace(replicas=[0] * count) for n, count in enumerate(replicas)})


def test_a_kafka_topic_has_as_many_replicas_as_its_weakest_partition() -> None:
    config = {"min.insync.replicas": "2", "max.message.bytes": "1000"}
    assert kafka._place("a", metadata(3, 2), config) == Place("a", replicas=2, min_insync=2, max_bytes=1000)
    assert kafka._place("a", metadata(3), {}).unknown == "its min.insync.replicas cannot be read"
    assert kafka._place("a", metadata(), {}).missing == kafka._place("a", None, {}).missing == "there is no such topic"


def test_settings_of_topics_are_read_one_by_one() -> None:
    class Client:
        def describe_configs(self, resources: Any, **_: Any) -> dict[Any, Future[Any]]:
            answers: dict[Any, Future[Any]] = {resource: Future() for resource in resources}
            first, second = answers.values()
            first.set_result({"min.insync.replicas": SimpleNamespace(value="2")})
            second.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
            return answers

    client: Any = Client()
    assert kafka._configs(client, ["a", "b"], 1) == {"a": {"min.insync.replicas": "2"}}
    assert kafka._configs(client, [], 1) == {}


def test_what_rabbitmq_says_is_different() -> None:
    def different(text: str) -> Any:
        return rabbitmq._INEQUIVALENT.search(f"PRECONDITION_FAILED - inequivalent arg {text}")

    queue = "for queue 'a' in vhost '/': received"
    classic = different(f"'x-queue-type' {queue} the value 'quorum' of type 'longstr' but current is none")
    assert rabbitmq._otherwise("a", "queue a", classic).weakness == "it is a classic queue, on one node"
    stream = different(f"'x-queue-type' {queue} none but current is the value 'stream' of type 'longstr'")
    assert rabbitmq._otherwise("a", "queue a", stream).weakness == ""
    transient = different(f"'durable' {queue} 'true' but current is 'false'")
    assert rabbitmq._otherwise("a", "queue a", transient).weakness.startswith("it is not durable")
    for text, value in {
        "the value '10' of type 'byte'": 10,
        "the value 'x' of type 'longstr'": "x",
        "the value '10' of type 'longstr'": "10",
        "the value 'true' of type 'bool'": True,
        "none": None,
    }.items():
        found = rabbitmq._value(different(f"'x-max-length' {queue} none but current is {text}"))
        assert (found, type(found)) == (value, type(value))


def test_only_the_options_of_postroom_are_read_from_a_webhooks_url() -> None:
    inspector = HttpInspector("http://127.0.0.1:8000/hook?tenant=7&postroom.private=true")
    assert (inspector.name, inspector.is_local, inspector.encrypted) == ("http://127.0.0.1:8000", True, False)
    assert inspector.secure_scheme == "https"
