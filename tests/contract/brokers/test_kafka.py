"""What is Kafka's own."""

from __future__ import annotations

import certifi
import pytest
from confluent_kafka import KafkaError

from postroom import Message
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.port import Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import InvalidSetting
from postroom.rules.failures import Reason
from tests.contract.brokers.rigs import KafkaRig
from tests.services.databases import need
from tests.services.kafka import Kafka


@pytest.fixture(scope="module")
def rig() -> KafkaRig:
    return KafkaRig(need(Kafka))


async def test_the_answer_is_partition_and_offset_and_a_key_has_one_partition(rig: KafkaRig) -> None:
    await rig.declare("offsets")
    broker = KafkaBroker(rig.url())
    answers = []
    for number in range(3):
        [outcome] = await broker.publish([Message.new("offsets", {"n": number}, key="k")], 10.0)
        assert isinstance(outcome, Accepted)
        answers.append(str(outcome.answer).split(":"))
    await broker.close()
    assert {partition for partition, _ in answers} == {answers[0][0]}
    assert [offset for _, offset in answers] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TargetUnavailable),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, Unreached),
        (KafkaError.NOT_LEADER_FOR_PARTITION, Accepted),  # the client finds the new one
        (KafkaError.INVALID_RECORD, Refused),
        (KafkaError.MSG_SIZE_TOO_LARGE, Refused),
    ],
)
async def test_L_9_what_an_error_of_the_server_means(rig: KafkaRig, error: int, outcome: type[Outcome]) -> None:
    await rig.declare("errors")
    broker = KafkaBroker(rig.url())
    assert isinstance((await broker.publish([Message.new("errors", "a")], 10.0))[0], Accepted)
    rig.server.refuse_next(error)
    [found] = await broker.publish([Message.new("errors", "b")], 10.0)
    [after] = await broker.publish([Message.new("errors", "c")], 10.0)
    await broker.close()
    assert type(found) is outcome
    assert isinstance(after, Accepted)


async def test_what_the_server_finds_too_large_together_is_sent_alone(rig: KafkaRig) -> None:
    await rig.declare("together")
    broker = KafkaBroker(rig.url())
    rig.server.refuse_next(KafkaError.MSG_SIZE_TOO_LARGE)
    outcomes = await broker.publish([Message.new("together", {"n": n}, key="k") for n in range(5)], 10.0)
    await broker.close()
    assert {type(one) for one in outcomes} == {Accepted}


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_a_tombstone_has_no_value_in_either_mode(rig: KafkaRig, mode: str) -> None:
    """Compaction removes a key by a record without a value, and by no other."""
    await rig.declare(f"tombstones-{mode}")
    broker = KafkaBroker(rig.url(mode=mode))
    messages = [Message.new(f"tombstones-{mode}", payload, key="k") for payload in ("a", None)]
    assert {type(one) for one in await broker.publish(messages, 10.0)} == {Accepted}
    await broker.close()
    there, gone = await rig.received(f"tombstones-{mode}")
    assert [one.id for one in (there, gone)] == [str(message.id) for message in messages]
    assert (there.payload, gone.payload) == (b"a", None)
    assert rig.values[-1] is None


@pytest.mark.parametrize("topic", ["a b", "ü", "a/b", "..", "__consumer_offsets"])
async def test_a_topic_that_kafka_cannot_have_is_refused(rig: KafkaRig, topic: str) -> None:
    broker = KafkaBroker(rig.url())
    [outcome] = await broker.publish([Message.new(topic, "a")], 10.0)
    await broker.close()
    assert isinstance(outcome, Refused)
    assert outcome.code == Reason.INVALID_TARGET


def test_topics_are_not_declared() -> None:
    with pytest.raises(InvalidSetting, match="topics are not declared here"):
        KafkaBroker("kafka://host?declare=true")


def test_what_the_producer_is_told() -> None:
    ca = certifi.where()
    settings = KafkaBroker(f"kafka+ssl://shop:p%40ss@one,two:9000?sasl=SCRAM-SHA-512&ca={ca}").settings()
    assert settings["bootstrap.servers"] == "one:9093,two:9000"
    assert (settings["acks"], settings["enable.idempotence"]) == ("all", True)
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (settings["sasl.username"], settings["sasl.password"]) == ("shop", "p@ss")
    assert settings["ssl.ca.location"] == ca
