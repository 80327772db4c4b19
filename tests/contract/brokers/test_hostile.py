"""One message that no protocol was made for, among a hundred good ones: these arrive, once each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from postroom import Message
from postroom.brokers.port import Accepted, NotSent, Outcome, Refused, TargetUnavailable
from postroom.rules.failures import Failure, classify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.port import Broker
    from tests.contract.brokers.rigs import Rig

LONE_SURROGATE = "\ud800"
TEXTS = ["", "x" * 300, "größe", "a b", "a\r\nb", "a\0b", LONE_SURROGATE]
TOPICS = [
    *(*TEXTS, "x" * 5000, "ü" * 255, "a.*", "a.>", "*", ".", "..", "../a", "a\r\nPUB b 0\r\n"),
    *("$JS.API.STREAM.PURGE.X", "$SYS.REQ", "_INBOX.a.b", "amq.gen-a", "__consumer_offsets"),
]
NAMES = [
    *(*TEXTS, "CC", "BCC", "x-death", "%", ":", "Nats-Rollup", "Nats-Expected-Stream", "Host", "Content-Length"),
    *("Transfer-Encoding", "Connection", "ce-specversion", "ce_id", "data"),
]
HOSTILE: dict[str, list[dict[str, Any]]] = {
    "topics": [{"topic": topic} for topic in TOPICS],
    "keys": [{"key": key} for key in (*TEXTS, "k" * 100_000)],
    "types": [{"type": kind} for kind in TEXTS],
    "aggregates": [{"aggregate_type": name, "aggregate_id": name} for name in TEXTS],
    "content types": [{"content_type": kind} for kind in (*TEXTS, "ü" * 200)],
    "names of headers": [{"headers": {name: "1000000"}} for name in NAMES],
    "values of headers": [{"headers": {"a": value}} for value in (*TEXTS, "v" * 200_000, 5)],
    "many headers": [{"headers": {f"name-{n}": "x" * 100 for n in range(many)}} for many in (1000, 5000)],
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
async def test_B_3_one_hostile_message_harms_no_other(
    rig: Rig, broker: Broker, topic: str, hostile: list[dict[str, Any]]
) -> None:
    await rig.declare(topic)
    expected, strange = [], set()
    for change in hostile:
        good = [Message.new(topic, {"n": n}, key=n % 7, headers={"n": str(n)}) for n in range(100)]
        bad = msgspec.structs.replace(Message.new(topic, "a"), **change)
        outcome, *outcomes = await sent(broker, [bad, *good])
        assert {type(one) for one in outcomes} == {Accepted}, change
        if rig.greets:  # a webhook's receiver answers what it likes
            assert isinstance(outcome, Accepted | TargetUnavailable) or is_for_good(outcome), (change, outcome)
        expected += [str(message.id) for message in good]
        strange.add(str(bad.id))
    arrived = [event.id for event in await rig.received(topic) if event.id not in strange]
    assert sorted(arrived) == sorted(expected)


async def sent(broker: Broker, messages: Sequence[Message]) -> list[Outcome]:
    """What becomes of each, the first being sent in the middle; those kept back are sent again, as a relay does."""
    middle = len(messages) // 2
    order = [*range(1, middle), 0, *range(middle, len(messages))]
    found: dict[int, Outcome] = {}
    for _ in range(3):
        outcomes = await broker.publish([messages[index] for index in order], 20.0)
        found.update(zip(order, outcomes, strict=True))
        order = [index for index in order if isinstance(found[index], NotSent)]
        if not order:
            break
    return [found[index] for index in range(len(messages))]


def is_for_good(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and (outcome.failure or classify(outcome.code)) is Failure.PERMANENT
