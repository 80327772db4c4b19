"""What is a webhook's own."""

from __future__ import annotations

import base64
import json
from email.utils import formatdate
from time import time

import pytest

from postroom import Message
from postroom.brokers.http import HttpBroker, _pause, is_public
from postroom.brokers.port import Accepted, Outcome, Refused, Unreached
from postroom.brokers.signatures import signature
from postroom.errors import BrokerUnavailable, InvalidSetting
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
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"shop:p@ss"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize(
    ("topic", "outcome"),
    [
        ("retry", Refused("HTTP_429", "429 Too Many Requests", retry_after=120.0)),
        ("moved", Refused("HTTP_302", "302 Found")),
        ("broken", Refused("HTTP_500", "500 Internal Server Error")),
        ("gone", Unreached("the receiver answers 410 Gone")),
    ],
)
async def test_what_an_answer_means(receiver: Receiver, topic: str, outcome: Outcome) -> None:
    url = f"http://127.0.0.1:{receiver.port}/?postroom.private=true"
    assert await published(url, Message.new(topic, "a")) == outcome


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0", "169.254.169.254"])
async def test_only_the_public_internet_is_reached(receiver: Receiver, host: str) -> None:
    with pytest.raises(BrokerUnavailable):
        await published(f"http://{host}:{receiver.port}/", Message.new("t", "a"))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("8.8.8.8", True), ("2606:4700::1111", True), ("64:ff9b::808:808", True)),
        *(
            ("10.0.0.1", False),
            ("100.64.0.1", False),
            ("224.0.0.1", False),
            ("fe80::1%eth0", False),
            ("fd00::1", False),
        ),
        *(("::ffff:10.0.0.1", False), ("2002:7f00:1::", False), ("64:ff9b::7f00:1", False)),
    ],
)
def test_which_addresses_are_public(address: str, *, public: bool) -> None:
    assert is_public(address) is public


def test_retry_after_is_seconds_or_a_time() -> None:
    assert _pause("7") == 7.0
    assert _pause("999999999") == 86400.0
    assert _pause(formatdate(time() - 60, usegmt=True)) == 0.0
    assert 0 < (_pause(formatdate(time() + 3600, usegmt=True)) or 0) <= 3600
    assert _pause("soon") is None


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
