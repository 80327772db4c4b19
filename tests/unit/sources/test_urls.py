"""Sources by the URLs of their brokers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroom.errors import InvalidSetting
from postroom.sources.urls import open_source

CLIENTS = [
    ("nats", "nats://shop:hidden@host", "nats", "nats://host:4222"),
    ("pamqp", "amqp://shop:hidden@host/vhost", "rabbitmq", "amqp://host:5672"),
    ("confluent_kafka", "kafka://shop:hidden@one,two:9000", "kafka", "kafka://one:9092,two:9000"),
    ("redis", "redis://:hidden@host/3", "redis", "redis://host:6379"),
]
"""Of each broker the client's module, a URL, the extra, and the name in logs."""


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
async def test_I_2_a_url_opens_its_source(module: str, url: str, extra: str, name: str) -> None:
    del module, extra
    source = open_source(url, "billing", ["orders.created"])
    assert source.name == name
    await source.close()


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
def test_a_client_that_is_not_installed_is_named_with_its_extra(module: str, url: str, extra: str, name: str) -> None:
    del name
    program = f"""
import sys
sys.modules[{module!r}] = None  # as Python marks what is not there
from postroom.errors import DriverMissing
from postroom.sources.urls import open_source
try:
    open_source({url!r}, "billing", ["t"])
except DriverMissing as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"there is no module {module}; run pip install 'postroom[{extra}]'" in ended.stdout


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://hidden@host/hook", "webhooks are pushed to a web application"),
        ("stdout:", "nothing can be received from standard output"),
        ("python:module:function", "the relay itself calls the function"),
        ("memory:", "give the MemoryBroker"),
        ("carrier-pigeon://hidden@host", "carrier-pigeon: is not a broker that Postroom can receive from"),
        ("nats://host?bogus=1", "unknown option 'bogus'"),
        ("nats://host?ack_wait=0", "option ack_wait is not valid"),
        ("redis://host?claim_idle_ms=soon", "option claim_idle_ms is not valid"),
        ("kafka://host?session_timeout_ms=1", "option session_timeout_ms is not valid"),
        ("kafka://host?declare=true", "topics are not declared here"),
        ("nats://host?declare=true", "give its name and its subjects"),
    ],
)
def test_what_cannot_be_received_from_is_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        open_source(url, "billing", ["orders.created"])
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "topic", "problem"),
    [
        ("redis://host", "orders.*", "name each topic"),
        ("nats://host", "orders*", "whole words between dots"),
        ("nats://host", "*", "name the stream"),
        ("nats://host", "a b", "is not a subject"),
        ("nats://host", "orders.>", "is not a subject"),
        ("amqp://host", "orders.*", "give an exchange"),
        ("amqp://host?exchange=events", "orders*", "whole words between dots"),
        ("amqp://host?exchange=events&exchange_type=direct", "orders.*", "type direct knows no patterns"),
        ("nats://host", "", "give at least one"),
    ],
)
async def test_a_topic_that_the_broker_cannot_filter_by_is_refused(url: str, topic: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        open_source(url, "billing", [topic])


def test_a_source_needs_topics() -> None:
    with pytest.raises(InvalidSetting, match="needs topics"):
        open_source("nats://host", "billing", [])
