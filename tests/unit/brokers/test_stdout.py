from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from msgspec.structs import replace

from postroom.brokers.port import ACCEPTED, NOT_SENT
from postroom.brokers.stdout import StdoutBroker
from postroom.errors import BrokerUnavailable
from postroom.message import Message
from postroom.rules.failures import Reason


async def written(*messages: Message) -> list[dict[str, Any]]:
    stream = io.StringIO()
    assert await StdoutBroker(stream).publish(messages, 1.0) == [ACCEPTED] * len(messages)
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(messages)
    return [json.loads(line) for line in lines]


async def test_a_message_is_one_line_of_json() -> None:
    message = Message.new("orders.created", {"order_id": 7}, key="c1", type="OrderCreated", headers={"a": "b"})
    [line] = await written(message)
    assert line == {
        "id": str(message.id),
        "topic": "orders.created",
        "type": "OrderCreated",
        "key": "c1",
        "content_type": "application/json",
        "headers": {"a": "b"},
        "payload": {"order_id": 7},
    }


async def test_one_that_cannot_be_written_is_refused_and_those_behind_it_wait() -> None:
    fine = Message.new("orders", "a")
    stream = io.StringIO()
    outcomes = await StdoutBroker(stream).publish([fine, replace(fine, key="\ud800"), fine], 1.0)
    assert outcomes[0] == ACCEPTED
    assert getattr(outcomes[1], "code", None) == Reason.INVALID_HEADER
    assert outcomes[2] == NOT_SENT
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("payload", "content_type", "field", "shown"),
    [
        (b'{\n  "n": 1\n}', "application/json", "payload", {"n": 1}),
        (b'{"n": 1', "application/json", "payload", '{"n": 1'),
        ("a\nb", None, "payload", "a\nb"),
        (b"\xff\x00", None, "payload_base64", base64.b64encode(b"\xff\x00").decode()),
    ],
)
async def test_whatever_the_payload_the_line_is_json(
    payload: object, content_type: str | None, field: str, shown: object
) -> None:
    [line] = await written(Message.new("t", payload, content_type=content_type))
    assert line[field] == shown


async def test_a_tombstone_has_no_payload() -> None:
    [line] = await written(Message.new("t", None))
    assert not {"payload", "payload_base64"} & set(line)


async def test_without_a_reader_the_broker_is_away() -> None:
    stream = io.StringIO()
    stream.close()
    with pytest.raises(BrokerUnavailable):
        await StdoutBroker(stream).publish([Message.new("t")], 1.0)


async def test_without_standard_output_nothing_counts_as_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as in a program started with it closed
    with pytest.raises(BrokerUnavailable, match="closed"):
        await StdoutBroker().publish([Message.new("t", 1)], 1.0)
