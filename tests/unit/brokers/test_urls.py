from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from postroom.brokers import urls
from postroom.brokers.cloudevents import NATS, Envelope
from postroom.errors import InvalidSetting

PORTS = {"nats": 4222, "nats+tls": 4223}


class Options(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, msgspec.Meta(ge=1)] = 5
    secret: str | None = None


def test_a_url_is_taken_apart() -> None:
    url = "nats://shop:p%40ss@one,[::1]:5000/a%2Fb?mode=structured&source=/shop&limit=7&declare=true"
    address, options = urls.parse(url, PORTS, Options)
    assert address == urls.BrokerUrl("nats", [("one", 4222), ("[::1]", 5000)], "shop", "p@ss", "a%2Fb")
    assert address.name == "nats://one:4222,[::1]:5000"
    assert options == Options(mode="structured", source="/shop", limit=7, declare=True)
    assert options.envelope(NATS) == Envelope(NATS, "/shop", "structured")


def test_what_is_left_out_has_its_usual_value() -> None:
    assert urls.parse("nats+tls://host", PORTS, Options) == (urls.BrokerUrl("nats+tls", [("host", 4223)]), Options())


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("host?bogus=hidden", "unknown option 'bogus'; known options: ca, declare, limit, mode, secret, source"),
        ("host?limit=hidden", "option limit is not valid"),
        ("host?limit=0", "option limit is not valid"),
        ("host?mode=loud", "option mode is not valid"),
        ("host?declare=perhaps", "option declare is not valid"),
        ("host?limit=1&limit=2", "'limit' twice"),
        ("host:99999", "no valid host and port"),
        ("host:hidden", "no valid host and port"),
        ("", "no valid host and port"),
        ("a,,b", "no valid host and port"),
        ("host#hidden", "cannot be read"),
    ],
)
def test_a_wrong_url_is_an_error_without_secrets(rest: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem) as caught:
        urls.parse(f"nats://hidden:hidden@{rest}", PORTS, Options)
    assert "hidden" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    address, _ = urls.parse("nats://shop:hidden@host?secret=hidden", PORTS, Options)
    assert "hidden" not in repr(address) + address.name


def test_a_missing_client_names_the_extra() -> None:
    error = urls.client_missing("nats", "nats", ImportError("no", name="nats"))
    assert str(error) == "nats: needs a client library: there is no module nats; run pip install 'postroom[nats]'"


@pytest.mark.parametrize("scheme", urls.ENCRYPTED)
def test_a_file_of_certificate_authorities_that_is_none_is_an_error(scheme: str) -> None:
    with pytest.raises(InvalidSetting, match="the ca file /nonexistent cannot be read"):
        urls.parse(f"{scheme}://host?ca=/nonexistent", {scheme: 1}, urls.UrlOptions)


def test_certificate_authorities_are_of_no_use_to_a_connection_that_is_not_encrypted() -> None:
    with pytest.raises(InvalidSetting, match="nats:// is not encrypted: use one of amqps://"):
        urls.parse("nats://host?ca=/etc/ca.pem", PORTS, Options)
