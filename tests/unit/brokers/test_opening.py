"""Brokers by their URLs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from postroom.compose.brokers import open_broker
from postroom.errors import InvalidSetting
from postroom.settings import Settings

CLIENTS = [
    ("nats", "nats://shop:hidden@host", "nats", "nats://host:4222"),
    ("pamqp", "amqp://shop:hidden@host/vhost", "rabbitmq", "amqp://host:5672"),
    ("confluent_kafka", "kafka://shop:hidden@one,two:9000", "kafka", "kafka://one:9092,two:9000"),
    ("httpx", "https://shop:hidden@host/hook?token=hidden&postroom.source=/shop", "http", "https://host:443"),
    ("redis", "redis://:hidden@host/3", "redis", "redis://host:6379"),
]
"""Of each broker the client's module, a URL, the extra, and the name in logs."""


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
async def test_a_url_opens_its_broker(module: str, url: str, extra: str, name: str) -> None:
    del module, extra
    broker = open_broker(Settings(broker=url))
    assert broker.name == name
    await broker.close()


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
def test_a_client_that_is_not_installed_is_named_with_its_extra(module: str, url: str, extra: str, name: str) -> None:
    del name
    program = f"""
import sys
sys.modules[{module!r}] = None  # as Python marks what is not there
from postroom.compose.brokers import open_broker
from postroom.errors import DriverMissing
from postroom.settings import Settings
try:
    open_broker(Settings(broker={url!r}))
except DriverMissing as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"there is no module {module}; run pip install 'postroom[{extra}]'" in ended.stdout


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
def test_an_option_that_does_not_exist_is_named(module: str, url: str, extra: str, name: str) -> None:
    del module, extra, name
    option = "&postroom.bogus=1" if "?" in url else "?bogus=1"  # a webhook's query is the receiver's
    with pytest.raises(InvalidSetting, match="unknown option 'bogus'") as caught:
        open_broker(Settings(broker=url + option))
    assert "hidden" not in str(caught.value)


def test_an_unknown_scheme_is_an_error_that_names_the_known() -> None:
    with pytest.raises(InvalidSetting, match=r"carrier-pigeon: is not a broker .* nats://host"):
        open_broker(Settings(broker="carrier-pigeon://hidden@host"))
