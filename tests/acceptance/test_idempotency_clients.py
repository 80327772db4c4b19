"""Clients of ASGI applications that go before they have their response, at whatever moment."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.acceptance.keyed_shop import KEY, LARGE, KeyedShop, served
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

NOT_KEPT = "urn:postroom:idempotency:response-not-kept"
SCOPE = {"type": "http", "method": "POST", "headers": [(b"idempotency-key", b"7f9c"), (b"authorization", b"Bearer a")]}


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database("sqlite"))) as service:
        yield service


@pytest.mark.parametrize("path", ["/log", "/silent"])
async def test_a_large_stream_without_an_end_counts_as_done_some_time_after_its_client_has_gone(
    service: Service, path: str
) -> None:
    shop = KeyedShop(service.url)
    with patch("postroom.web.idempotency.response_state.DRAIN_SECONDS", 0.3):
        async with served(shop.middleware) as client:
            async with client.stream("POST", path, headers=KEY) as answer:
                assert len(await anext(answer.aiter_bytes(LARGE))) == LARGE
                running = await client.post(path, headers=KEY)
                assert running.json()["type"] == "urn:postroom:idempotency:in-progress"
            again = running
            while again.json()["type"] != NOT_KEPT:
                again = await client.post(path, headers=KEY)
            if path == "/log":  # it is told, as it has something to send
                await wait_for(lambda: not shop.middleware._runs)
            for run in shop.middleware._runs:
                run.cancel()  # as a server does that is told to stop
        assert len(shop.effects) == 1


async def test_a_server_can_stop_when_the_client_of_a_stream_without_an_end_has_gone(service: Service) -> None:
    shop = KeyedShop(service.url)
    with patch("postroom.web.idempotency.response_state.DRAIN_SECONDS", 0.3):
        async with (
            asyncio.timeout(20),
            served(shop.middleware) as client,
            client.stream("POST", "/log", headers=KEY) as answer,
        ):
            await anext(answer.aiter_bytes(LARGE))
    assert not shop.middleware._runs


async def test_what_a_stream_raises_after_its_whole_response_is_not_hidden(service: Service) -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"Text/Event-Stream")]})
        await send({"type": "http.response.body", "body": b"x"})
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError("in the background")

    sent = asyncio.Event()
    events = iter([{"type": "http.request"}])

    async def receive() -> Any:
        if event := next(events, None):
            return event
        await sent.wait()
        return {"type": "http.disconnect"}  # as servers say also of a client that has all

    async def send(event: Any) -> None:
        if event["type"] == "http.response.body":
            sent.set()

    shop = KeyedShop(service.url)
    shop.middleware._app = app
    with pytest.raises(RuntimeError, match="in the background"):
        await shop.middleware({**SCOPE, "path": "/"}, receive, send)
    await shop.middleware.close()


async def test_a_request_that_is_cancelled_while_it_is_being_begun_is_not_left_in_between(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        with closing(sqlite3.connect(service.url.removeprefix("sqlite:///"))) as other:
            other.execute("BEGIN IMMEDIATE")
            gone = asyncio.ensure_future(client.post("/orders", headers=KEY))
            await wait_for(lambda: shop.middleware._runs)
            gone.cancel()
            await asyncio.wait({gone})
        await wait_for(lambda: not shop.middleware._runs)
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}
    assert len(shop.effects) == 1


async def test_a_handler_that_cancels_itself_has_failed(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        for _ in range(2):  # by raising the error, and by cancelling its task
            with pytest.raises(asyncio.CancelledError):
                await client.post("/cancelled", headers=KEY)
        assert (await client.post("/cancelled", headers=KEY)).text == "done"
    assert len(shop.effects) == 3


@pytest.mark.parametrize("error", [OSError("gone"), RuntimeError("of a middleware further out")])
@pytest.mark.parametrize("sent", range(4))
async def test_who_cannot_be_sent_a_large_response_has_gone(
    service: Service, error: Exception, sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    shop = KeyedShop(service.url)
    events: list[Any] = []

    async def receive() -> Any:
        if events:
            await asyncio.Event().wait()
        return {"type": "http.request"}

    async def send(event: Any) -> None:
        if len(events) == sent:
            raise error
        events.append(event)

    await shop.middleware({**SCOPE, "path": "/stream"}, receive, send)
    assert ("could not be sent" in caplog.text) is isinstance(error, RuntimeError)
    async with shop.client() as client:
        assert (await client.post("/stream", headers=KEY)).json()["type"] == NOT_KEPT
    assert len(shop.effects) == 1
