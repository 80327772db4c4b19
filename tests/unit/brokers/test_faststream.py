"""What FastStream's brokers are asked to publish, and what their clients' errors mean."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream.confluent import KafkaBroker
from faststream.nats import NatsBroker
from faststream.rabbit import RabbitBroker
from faststream.redis import RedisBroker
from nats.errors import ConnectionClosedError
from nats.js.errors import NoStreamResponseError

from postroom import Message
from postroom.brokers.faststream import FastStreamBroker
from postroom.brokers.port import NOT_SENT, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason


class Recorder:
    """Takes the place of a FastStream broker's client."""

    def __init__(self, broker: Any, monkeypatch: pytest.MonkeyPatch, **errors: BaseException) -> None:
        self.calls: list[dict[str, Any]] = []
        self.stopped = 0
        self._errors = errors
        for name in ("connect", "publish", "stop"):
            monkeypatch.setattr(broker, name, getattr(self, name))

    async def connect(self) -> None:
        if "connect" in self._errors:
            raise self._errors["connect"]

    async def stop(self) -> None:
        self.stopped += 1

    async def publish(self, body: bytes | None, **arguments: Any) -> bytes:
        self.calls.append({"body": body, **arguments})
        error = self._errors.get((body or b"").decode())
        if isinstance(error, asyncio.CancelledError):
            await asyncio.Event().wait()
        if error is not None:
            raise error
        return b"1-1"


@pytest.mark.parametrize(
    ("broker", "options", "expected"),
    [
        (KafkaBroker(), {}, {"topic": "orders", "key": b"7"}),
        (NatsBroker(), {"stream": "shop"}, {"subject": "orders", "stream": "shop"}),
        (RedisBroker(), {"maxlen": 10}, {"stream": "orders", "maxlen": 10}),
        (RedisBroker(), {"list": "jobs"}, {"list": "jobs"}),
        (RabbitBroker(), {}, {"queue": "orders"}),
        (RabbitBroker(), {"exchange": "events", "persist": False}, {"exchange": "events", "routing_key": "orders"}),
    ],
)
async def test_a_message_goes_to_where_its_topic_says(
    broker: Any, options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(broker, monkeypatch)
    destination = FastStreamBroker(broker, lambda message: {"headers": {"tenant": message.topic}}, **options)
    message = Message.new("orders", {"number": 7}, key=7, headers={"lang": "de"})
    answer = [TargetUnavailable("no queue took the message", by_message=True)]  # no confirmation of RabbitMQ
    assert await destination.publish([message], 5) == (
        answer if isinstance(broker, RabbitBroker) else [Accepted("1-1")]
    )
    [call] = recorder.calls
    assert call["body"] == b'{"number":7}'
    assert call["correlation_id"] == str(message.id)
    headers = call.pop("headers")
    assert {headers.get("ce-id"), headers.get("ce_id")} == {None, str(message.id)}
    assert (headers["lang"], headers["tenant"]) == ("de", "orders")
    assert call.items() >= expected.items()
    others = {"topic", "subject", "stream", "list", "queue", "exchange", "routing_key"} - expected.keys()
    assert not others & call.keys()
    if isinstance(broker, RabbitBroker):
        assert (call["message_id"], call["content_type"]) == (str(message.id), "application/json")
        assert call["persist"] is options.get("persist", True)
    else:
        assert headers["content-type"] == "application/json"
    await destination.close()
    assert recorder.stopped == 1


async def test_the_errors_of_clients_are_told_apart_and_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = NatsBroker()
    recorder = Recorder(
        broker,
        monkeypatch,
        gone=ConnectionClosedError(),
        nowhere=NoStreamResponseError(),
        odd=ValueError("odd"),
        slow=asyncio.CancelledError(),  # which stands for a call that does not end
    )
    destination = FastStreamBroker(broker, stream="shop")
    given = [("a", "fine"), (None, "gone"), ("a", "nowhere"), ("b", "odd"), ("a", "fine"), ("b", "fine"), ("c", "slow")]
    outcomes = await destination.publish([Message.new("orders", body, key=key) for key, body in given], 1)
    kinds: list[type[Outcome]] = [type(one) for one in outcomes]
    assert kinds == [Accepted, Unreached, TargetUnavailable, Refused, type(NOT_SENT), type(NOT_SENT), Refused]
    assert [one.code for one in outcomes if isinstance(one, Refused)] == [Reason.INTERNAL_ERROR, Reason.TIMEOUT]
    assert recorder.stopped == 1  # and connected anew by the next one
    assert isinstance((await destination.publish([Message.new("orders", "fine")], 1))[0], Accepted)
    Recorder(broker, monkeypatch, connect=OSError("refused"))
    absent = FastStreamBroker(broker, stream="shop")
    with pytest.raises(BrokerUnavailable, match="faststream:nats: refused"):
        await absent.publish([Message.new("orders", 1)], 1)
