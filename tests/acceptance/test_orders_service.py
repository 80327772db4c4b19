"""What the service of `examples/orders` answers, on every database; nobody sends its orders anywhere."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from examples.orders.service import app, set_up
from postroom.store.connections.stores import Store
from tests.contract import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

WISH = {"symbol": "ACME", "side": "buy", "quantity": 1}


class Client:
    """Who orders, from a service in this process."""

    def __init__(self, runner: asyncio.Runner, database: str) -> None:
        self._run = runner.run
        self.database = database

    def order(self, *keys: bytes, **wish: Any) -> httpx.Response:
        headers = [(b"content-type", b"application/json"), *((b"idempotency-key", key) for key in keys)]
        return self.ask("POST", "/do/order", content=json.dumps({**WISH, **wish}), headers=headers)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._run(self._ask(method, path, **options))

    async def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
            return await client.request(method, path, **options)


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def client(request: pytest.FixtureRequest, module_database: FreshDatabase) -> Iterator[Client]:
    database = module_database(request.param)
    set_up(database)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("POSTROOM_DATABASE", database)
        serving = app.router.lifespan_context(app)
        runner.run(serving.__aenter__())
        yield Client(runner, database)
        runner.run(serving.__aexit__(None, None, None))


def is_problem(answer: httpx.Response, status: int) -> bool:
    """Whether it was refused with this status, in the form that the README promises."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    told: dict[str, Any] = answer.json()
    assert {"type", "title", "status"} <= set(told)
    return (answer.status_code, told["status"]) == (status, status)


@pytest.mark.parametrize(
    "key", ["a b", "a/b", "a/../b", "/", "...", "a?b#c", "a%2Fb", '"', "~" * 64], ids=lambda key: f"<{key[:6]}>"
)
def test_K_2_the_location_of_an_order_leads_to_it_whatever_its_key(client: Client, key: str) -> None:
    quoted = '"' + key.replace('"', r"\"") + '"'
    answer = client.order(quoted.encode())
    assert answer.status_code == 202
    assert client.ask("GET", answer.headers["location"]).json()["key"] == key


def test_K_2_a_key_is_the_same_with_quotes_and_without(client: Client) -> None:
    quoted, bare, other = client.order(b'"quoted"'), client.order(b"quoted"), client.order(b"quoted", quantity=2)
    assert [one.status_code for one in (quoted, bare, other)] == [202, 202, 409]
    assert quoted.json() == bare.json() == {"key": "quoted", "status": "pending"}


def test_K_2_keys_that_differ_in_case_are_two(client: Client) -> None:
    answers = [client.order(b"case"), client.order(b"CASE", quantity=2)]
    assert [one.status_code for one in answers] == [202, 202]
    assert (
        client.ask("GET", "/do/order/case").json()["message"] != client.ask("GET", "/do/order/CASE").json()["message"]
    )


@pytest.mark.parametrize(
    "key",
    ["é".encode(), "é".encode("latin-1"), b".", b"..", b'".."', b"", b'""', b'" "', b'"a', b"k" * 65, b"k\x7f"],
    ids=repr,
)
def test_K_2_a_key_that_cannot_be_asked_for_or_sent_on_is_refused(client: Client, key: bytes) -> None:
    assert is_problem(client.order(key), 400)


def test_K_2_an_order_with_two_keys_is_refused(client: Client) -> None:
    assert is_problem(client.order(b"one", b"two"), 400)


@pytest.mark.parametrize("symbol", ["AC\0ME", "AC\ud800", "A\nB", "", "acme", "A" * 17], ids=repr)
def test_E_1_a_symbol_that_cannot_be_one_is_refused(client: Client, symbol: str) -> None:
    assert is_problem(client.order(b"symbol", symbol=symbol), 422)
    assert is_problem(client.ask("GET", "/do/order/symbol"), 404)


@pytest.mark.parametrize("path", ["/do/order/", "/do/order/a%00b", "/do/order/%C3%A9", "/do/order/" + "k" * 300])
def test_E_1_what_cannot_be_a_key_is_no_orders(client: Client, path: str) -> None:
    assert is_problem(client.ask("GET", path), 404)


def test_E_1_all_that_is_refused_is_told_as_a_problem(client: Client) -> None:
    headers = {"Idempotency-Key": "nested", "Content-Type": "application/json"}
    assert is_problem(client.ask("POST", "/do/order", content="[" * 100_000, headers=headers), 400)
    assert is_problem(client.ask("POST", "/do/order", content="{", headers=headers), 422)
    assert is_problem(client.ask("GET", "/nowhere"), 404)
    wrong_method = client.ask("DELETE", "/do/order")
    assert is_problem(wrong_method, 405)
    assert wrong_method.headers["allow"] == "POST"


def test_K_1_an_order_that_waits_longer_than_outcomes_are_kept_is_pending(client: Client) -> None:
    assert client.order(b"patient").status_code == 202
    with closing(Store(client.database)) as store:
        clock.advance(store, 25 * 3600)
    assert client.ask("GET", "/do/order/patient").json()["status"] == "pending"
