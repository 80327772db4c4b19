"""What is a webhook's own."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import socket
from email.utils import formatdate
from time import time

import pytest

from postroom import Message
from postroom.brokers.http import LONGEST_PAUSE, HttpBroker, _pause
from postroom.brokers.port import NOT_SENT, Accepted, Outcome, Refused, Unreached
from postroom.brokers.webhook_signatures import signature
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import Failure, Reason
from tests.services.databases import need
from tests.services.receiver import Receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the standard's own example


@pytest.fixture(scope="module")
def receiver() -> Receiver:
    return need(Receiver)


async def published(url: str, message: Message) -> Outcome:
    broker = HttpBroker(url)
    try:
        [outcome] = await broker.publish([message], 10.0)
        return outcome
    finally:
        await broker.close()


def test_the_signature_is_that_of_the_standard() -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    body = b'{"test": 2432232314}'
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_message_is_signed_with_every_secret_and_logs_in(receiver: Receiver) -> None:
    receiver.request("PUT", "/signed")
    message = Message.new("signed", {"n": 1})
    url = f"http://shop:p%40ss@127.0.0.1:{receiver.port}/?postroom.private=1&postroom.secret={SECRET}+whsec_b3RoZXI="
    assert await published(url, message) == Accepted("204")
    [line] = receiver.request("GET", "/signed").splitlines()
    headers = json.loads(line)["headers"]
    assert headers["webhook-id"] == str(message.id)
    now = int(headers["webhook-timestamp"])
    keys = [base64.b64decode(SECRET.removeprefix("whsec_")), b"other"]
    assert headers["webhook-signature"].split() == [signature(key, str(message.id), now, b'{"n":1}') for key in keys]
    signed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers) if re.match("ce-|content-type", name))
    own = [hmac.digest(key, b"attributes", "sha256") for key in keys]
    assert headers["webhook-attributes-signature"].split() == [
        signature(key, str(message.id), now, signed.encode()) for key in own
    ]
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"shop:p@ss"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Accepted("200")),
        (202, Accepted("202")),
        (302, Unreached("the receiver answers 302 Found")),
        (308, Unreached("the receiver answers 308 Permanent Redirect")),
        (400, Refused("HTTP_400", "400 Bad Request", Failure.PERMANENT)),
        (401, Unreached("the receiver answers 401 Unauthorized")),
        (403, Unreached("the receiver answers 403 Forbidden")),
        (404, Unreached("the receiver answers 404 Not Found")),
        (408, Refused("HTTP_408", "408 Request Timeout")),
        (409, Refused("HTTP_409", "409 Conflict", Failure.PERMANENT)),
        (410, Unreached("the receiver answers 410 Gone")),
        (413, Refused("MESSAGE_TOO_LARGE", "413 Request Entity Too Large", Failure.PERMANENT)),
        (422, Refused("HTTP_422", "422 Unprocessable Entity", Failure.PERMANENT)),
        (425, Refused("HTTP_425", "425 Too Early")),
        (429, Refused("HTTP_429", "429 Too Many Requests", retry_after=120.0)),
        (500, Refused("HTTP_500", "500 Internal Server Error")),
        (503, Refused("HTTP_503", "503 Service Unavailable", retry_after=LONGEST_PAUSE)),
        (504, Refused("HTTP_504", "504 Gateway Timeout")),
    ],
)
async def test_L_9_what_an_answer_means(receiver: Receiver, status: int, outcome: Outcome) -> None:
    url = f"http://127.0.0.1:{receiver.port}/?postroom.private=true"
    assert await published(url, Message.new(f"status-{status}", "a")) == outcome


async def test_an_answer_that_does_not_end_is_not_read(receiver: Receiver) -> None:
    url = f"http://127.0.0.1:{receiver.port}/?postroom.private=true"
    assert await published(url, Message.new("endless", "a")) == Accepted("200")


async def test_a_receiver_that_hangs_costs_an_attempt_only_those_that_were_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        broker = HttpBroker(f"http://127.0.0.1:{deaf.getsockname()[1]}/?postroom.private=true&postroom.concurrency=2")
        first = await broker.publish([Message.new("t", {"n": n}) for n in range(5)], 0.5)
        outcomes = await broker.publish([Message.new("t", {"n": n}) for n in range(5)], 0.5)
        await broker.close()
    assert [getattr(outcome, "code", None) for outcome in first] == [Reason.TIMEOUT, *[None] * 4]
    assert [getattr(outcome, "code", None) for outcome in outcomes] == [Reason.TIMEOUT] * 2 + [None] * 3
    assert outcomes[2:] == [NOT_SENT] * 3


async def test_an_address_that_does_not_answer_is_not_reached_and_the_next_is_tried(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.request("PUT", "/second")

    async def looked_up(*_: object, **__: object) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]  # on the first nothing listens

    monkeypatch.setattr("postroom.brokers.http.lookup", looked_up)
    url = f"http://shop.example:{receiver.port}/?postroom.private=true"
    assert await published(url, Message.new("second", "a")) == Accepted("204")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0", "2130706433", "0x7f.1", "169.254.169.254", "[::]"],
)
async def test_only_the_public_internet_is_reached(receiver: Receiver, host: str) -> None:
    with pytest.raises(BrokerUnavailable, match="not on the public internet"):
        await published(f"http://{host}:{receiver.port}/", Message.new("t", "a"))


@pytest.mark.parametrize("addresses", [["10.0.0.7"], ["93.184.216.34", "::ffff:10.0.0.7"], ["64:ff9b:1::8.8.8.8"]])
async def test_a_name_is_refused_for_any_private_address_that_it_has(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    with pytest.raises(BrokerUnavailable, match=r"shop\.example is not on the public internet"):
        await published("https://shop.example/hook", Message.new("t", "a"))


def test_retry_after_is_seconds_or_a_time() -> None:
    assert _pause("7") == 7.0
    assert _pause("999999999") == 86400.0
    assert _pause(formatdate(time() - 60, usegmt=True)) == 0.0
    assert 0 < (_pause(formatdate(time() + 3600, usegmt=True)) or 0) <= 3600
    assert _pause("soon") is None


@pytest.mark.parametrize(
    "absurd",
    [
        *("-5", "nan", "inf", "1e309", "", "9" * 400, "1, 2"),
        *("Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 9999 23:59:59 -2359", "Fri, 31 Dec 9999 23:59:59 -0000"),
        "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
        "Fri, 31 Dec 2026 23:59:59 +99999999999",
        "Sun, 01 Jan 0001 00:00:00 +2359",
    ],
)
async def test_L_9_an_absurd_retry_after_costs_no_other_message_anything(receiver: Receiver, absurd: str) -> None:
    receiver.request("PUT", "/beside")
    broker = HttpBroker(f"http://127.0.0.1:{receiver.port}/?postroom.private=true")
    outcomes = await broker.publish([Message.new("beside", "a"), Message.new("wait-absurd", absurd)], 10.0)
    await broker.close()
    accepted, refused = outcomes
    assert accepted == Accepted("204")
    assert isinstance(refused, Refused)
    assert refused.code == "HTTP_503"
    assert refused.retry_after is None or 0 <= refused.retry_after <= LONGEST_PAUSE


@pytest.mark.parametrize("status", [401, 403, 404, 405, 410, 302])
async def test_R_9_a_receiver_that_wants_no_messages_is_asked_once(receiver: Receiver, status: int) -> None:
    topic = f"status-{status}-once"
    broker = HttpBroker(f"http://127.0.0.1:{receiver.port}/?postroom.private=true")
    outcomes = [await broker.publish([Message.new(topic, {"n": n}) for n in range(100)], 10.0) for _ in range(2)]
    await broker.close()
    for first, *rest in outcomes:
        assert isinstance(first, Unreached)
        assert rest == [NOT_SENT] * 99
    assert len(receiver.request("GET", f"/{topic}").splitlines()) == 2


async def test_R_9_a_batch_that_comes_while_the_receiver_is_asked_waits_for_the_answer() -> None:
    asked, may_answer = asyncio.Semaphore(0), asyncio.Event()
    requests = 0

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await reader.readuntil(b"\r\n\r\n")
        requests += 1
        asked.release()
        await may_answer.wait()
        writer.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        broker = HttpBroker(f"http://127.0.0.1:{port}/?postroom.private=true")
        batches = [[Message.new("t", {"n": n}) for n in range(20)] for _ in range(2)]
        first = asyncio.create_task(broker.publish(batches[0], 10.0))
        await asked.acquire()
        second = asyncio.create_task(broker.publish(batches[1], 10.0))
        await asyncio.wait([second], timeout=0.2)
        may_answer.set()
        assert isinstance((await first)[0], Unreached)
        assert await second == [NOT_SENT] * 20
        await broker.close()
    assert requests == 1


async def test_R_9_one_message_that_is_not_wanted_keeps_none_from_being_sent(receiver: Receiver) -> None:
    receiver.request("PUT", "/wanted")
    broker = HttpBroker(f"http://127.0.0.1:{receiver.port}/?postroom.private=true")
    messages = [Message.new("status-404-one" if n == 7 else "wanted", {"n": n}) for n in range(50)]
    left, sent = messages, 0
    while left:
        outcomes = await broker.publish(left, 10.0)
        sent += sum(isinstance(outcome, Accepted) for outcome in outcomes)
        left = [message for message, outcome in zip(left, outcomes, strict=True) if outcome is NOT_SENT]
    await broker.close()
    assert sent == 49


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://a,b/", "one host"),
        ("https://a/?postroom.declare=true", "nothing to declare"),
        ("https://a/?postroom.secret=whsec_hidden!", "whsec_ and base64"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        HttpBroker(url)
    assert "hidden" not in str(caught.value)
