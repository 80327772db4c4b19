"""Which topics brokers can have, and which are their own."""

from typing import Any

import pytest

from postroom.rules import topics

LONE = "\ud800"


@pytest.mark.parametrize(
    "topic", ["orders", "orders.created", "größe", "a-b_c.D", "a$b", "a._INBOX", "_orders", "_R_s", "x" * 255]
)
def test_subjects_that_can_be(topic: str) -> None:
    assert topics.subject(topic) is None


@pytest.mark.parametrize(
    "topic", ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a.*", "a*", ">", "a.>", "a\r\nb", "a\0", LONE]
)
def test_what_is_no_subject(topic: str) -> None:
    assert "not a subject" in str(topics.subject(topic))


@pytest.mark.parametrize(
    "topic", ["$JS.API.STREAM.PURGE.X", "$SYS", "$KV.a.b", "$", "_INBOX", "_INBOX.a", "_INBOX_a.b", "_R_", "_GR_.a"]
)
def test_subjects_that_are_the_servers(topic: str) -> None:
    assert "reserved by the server" in str(topics.subject(topic))


def test_a_subject_that_would_not_fit_into_a_line() -> None:
    assert "more than 1024 bytes" in str(topics.subject("ü" * 600))


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        *(("orders", None), ("orders.created-2_x", None), ("_schemas", None), ("x" * 249, None), ("a..b", None)),
        *((name, "is not a Kafka topic") for name in ("", "a b", "ü", "a/b", "x" * 250, ".", "..", LONE)),
        *((name, "reserved by Kafka") for name in ("__consumer_offsets", "__transaction_state")),
    ],
)
def test_topics_of_kafka(topic: str, problem: str | None) -> None:
    found = topics.kafka_topic(topic)
    assert (problem is None) if found is None else (problem or "?") in found


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        *(("orders", None), ("größe", None), ("orders.*", None), ("a b", None), ("amqp", None), ("x" * 255, None)),
        *(("", "empty"), ("amq.gen-a", "reserved by the server"), ("amq.", "reserved by the server")),
        *(("ü" * 128, "has 256 bytes"), (LONE, "surrogate")),
    ],
)
def test_queues(topic: str, problem: str | None) -> None:
    found = topics.queue(topic)
    assert (problem is None) if found is None else (problem or "?") in found


def test_routing_keys_are_any_text_that_fits() -> None:
    assert [topics.routing_key(key) for key in ("", "amq.a", "größe.*")] == [None] * 3
    assert "has 256 bytes" in str(topics.routing_key("x" * 256))


def test_streams_have_any_name() -> None:
    assert topics.stream("a b\r\n*") is None
    assert "surrogate" in str(topics.stream(LONE))


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        *(("nats://host", topics.subject), ("nats+tls://host?stream=s", topics.subject)),
        *(("kafka://host", topics.kafka_topic), ("kafka+ssl://host", topics.kafka_topic)),
        *(("amqp://host", topics.queue), ("amqps://host?declare=true&exchange=", topics.queue)),
        *(("amqp://host?exchange=events&declare=true", topics.routing_key), ("rediss://host", topics.stream)),
        *(("https://host/?exchange=a", None), ("python:a:b", None), ("stdout:", None), ("", None), (None, None)),
    ],
)
def test_the_rule_of_a_broker(url: str | None, rule: Any) -> None:
    assert topics.rule_of(url) is rule
