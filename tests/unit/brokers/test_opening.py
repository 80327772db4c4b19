"""Brokers by their URLs."""

from __future__ import annotations

import sys

import pytest

from postroom.compose import open_broker
from postroom.errors import DriverMissing, InvalidSetting
from postroom.settings import Settings

CLIENTS = [
    ("nats", "nats://shop:hidden@host", "nats", "nats://host:4222"),
]
"""Of each broker the client's module, a URL, the extra, and the name in logs."""


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
async def test_a_url_opens_its_broker(module: str, url: str, extra: str, name: str) -> None:
    del module, extra
    broker = open_broker(Settings(broker=url))
    assert broker.name == name
    await broker.close()


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    module: str, url: str, extra: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del name
    for loaded in [one for one in sys.modules if one.startswith("postroom.brokers.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # as Python marks what must not be found
    with pytest.raises(DriverMissing, match=rf"no module {module}; run pip install 'postroom\[{extra}\]'"):
        open_broker(Settings(broker=url))


@pytest.mark.parametrize(("module", "url", "extra", "name"), CLIENTS)
def test_an_option_that_does_not_exist_is_named(module: str, url: str, extra: str, name: str) -> None:
    del module, extra, name
    with pytest.raises(InvalidSetting, match="there is no option 'bogus'") as caught:
        open_broker(Settings(broker=f"{url}?bogus=1"))
    assert "hidden" not in str(caught.value)


def test_an_unknown_scheme_is_an_error_that_names_the_known() -> None:
    with pytest.raises(InvalidSetting, match=r"carrier-pigeon: is not a broker .* nats://host"):
        open_broker(Settings(broker="carrier-pigeon://hidden@host"))
