"""Probes: a server that answers what is asked, and survives everything else."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.errors import InvalidSetting
from postroom.telemetry import probes
from postroom.telemetry.events import Lifecycle
from postroom.telemetry.health import Health
from postroom.telemetry.metrics import prometheus
from postroom.telemetry.probes import Answer, Probes, pages, prometheus_page
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def broken() -> Answer:
    raise ValueError("secret")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    health = Health()
    health(Lifecycle("w1", "started"))
    prometheus()
    port = free_port()
    async with Probes({**pages(health, prometheus_page), "/broken": broken}, port):
        yield port


async def exchange(port: int, request: bytes) -> bytes:
    """Send it, and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(10):
            answer = await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return answer


async def get(port: int, target: str, method: str = "GET") -> tuple[int, str]:
    head, _, body = (await exchange(port, f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    return int(head.split()[1]), body.decode()


async def test_V_4_pages_are_answered(port: int) -> None:
    assert await get(port, "/livez") == (200, '{"status":"ok","problems":[]}\n')
    status, body = await get(port, "/readyz?verbose=1")
    assert (status, json.loads(body)["problems"]) == (200, [])
    status, body = await get(port, "/metrics")
    assert status == 200
    assert "outbox_claimed_total" in body


async def test_V_4_what_is_not_ready_says_why() -> None:
    port = free_port()
    async with Probes(pages(Health()), port):
        assert await get(port, "/readyz") == (503, '{"status":"unavailable","problems":["not started"]}\n')
        assert (await get(port, "/metrics"))[0] == 404


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405),
        (b"GET /livez HTTP/2.0\r\n\r\n", 400),
        (b"GET http://host/other HTTP/1.1\r\n\r\n", 404),
        (b"GET ftp://host/livez HTTP/1.1\r\n\r\n", 400),
        (b"GET host/livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\n\n", 400),
        (b"GET /livez HTTP/1.1\r\nX: y\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01 hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 2000 + b"\r\n", 431),
        (b"GET /broken HTTP/1.1\r\n\r\n", 500),
    ],
)
async def test_what_is_wrong_is_answered_with_an_error_at_once(
    port: int, request_head: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "SECONDS", 60)
    answer = await exchange(port, request_head)
    assert answer.startswith(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode())
    assert b"secret" not in answer
    assert (b"Allow: GET, HEAD" in answer) == (status == 405)


async def test_V_4_while_metrics_are_slow_to_come_everything_else_goes_on() -> None:
    """Whatever is in the registry, one scrape waits for another, and nobody else does."""
    go_on, at_once, most = threading.Event(), 0, 0

    def slow() -> Answer:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        go_on.wait(10)
        at_once -= 1
        return Answer(HTTPStatus.OK, b"figures")

    port = free_port()
    async with Probes(pages(Health(), slow), port), asyncio.TaskGroup() as group:
        scrapes = [group.create_task(get(port, "/metrics")) for _ in range(3)]
        while not most:  # noqa: ASYNC110 - the thread sets no event of ours
            await asyncio.sleep(0)
        assert (await get(port, "/livez"))[0] == 200
        assert not any(scrape.done() for scrape in scrapes)
        go_on.set()
    assert [scrape.result() for scrape in scrapes] == [(200, "figures")] * 3
    assert most == 1


async def test_head_has_no_body(port: int) -> None:
    assert await get(port, "/livez", "HEAD") == (200, "")


async def test_a_request_that_does_not_come_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SECONDS", 0.05)
    assert await exchange(port, b"GET /livez HTTP/1.1\r\n") == b""


@pytest.mark.parametrize("form", ["http://host:9090/livez", "HTTP://[::1]:9090/livez?x=1"])
async def test_a_target_may_be_a_whole_url(port: int, form: str) -> None:
    """As a proxy sends it; RFC 9112 has every server take it."""
    assert (await get(port, form))[0] == 200


async def test_V_4_connections_that_ask_nothing_do_not_keep_others_out(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(probes.MOST_CONNECTIONS + 8)]
    for _, writer in idle:
        writer.write(b"GET /livez HTTP/1.1\r\nX: ")
    for _ in range(3):
        assert (await get(port, "/livez"))[0] == 200
    (oldest, _), (youngest, writer) = idle[0], idle[-1]
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            assert await oldest.read() == b""
        writer.write(b"y\r\n\r\n")
        assert (await youngest.read()).startswith(b"HTTP/1.1 200 ")
    for _, writer in idle:
        writer.transport.abort()


async def test_those_that_are_being_answered_are_not_turned_away_for_others() -> None:
    go_on, full, asking = asyncio.Event(), asyncio.Event(), list[None]()

    async def slow() -> Answer:
        asking.append(None)
        if len(asking) == probes.MOST_CONNECTIONS:
            full.set()
        await go_on.wait()
        return Answer(HTTPStatus.OK, b"")

    port = free_port()
    async with Probes({"/slow": slow}, port), asyncio.TaskGroup() as group:
        asked = [group.create_task(get(port, "/slow")) for _ in range(probes.MOST_CONNECTIONS)]
        await asyncio.wait_for(full.wait(), 10)
        assert await exchange(port, b"GET /slow HTTP/1.1\r\n\r\n") == b""
        go_on.set()
    assert {one.result() for one in asked} == {(200, "")}


@given(garbage=st.binary(max_size=300))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_garbage_does_not_end_it(garbage: bytes) -> None:
    async def throw() -> None:
        port = free_port()
        async with Probes(pages(Health()), port):
            await exchange(port, garbage + b"\r\n\r\n")
            assert (await get(port, "/livez"))[0] == 200

    asyncio.run(throw())


async def test_a_port_in_use_is_an_error_that_says_so(port: int) -> None:
    with pytest.raises(InvalidSetting) as raised:
        async with Probes({}, port):
            pass
    assert str(raised.value) == (
        f"http_port = {port}: cannot listen at 127.0.0.1:{port}: Address already in use; give another port, or "
        "another http_host"
    )


async def test_a_host_that_cannot_be_found_is_an_error_too() -> None:
    with pytest.raises(InvalidSetting, match=r"cannot listen at nosuch\.invalid:9000: .*; give"):
        async with Probes({}, 9000, "nosuch.invalid"):
            pass


def has_ipv6() -> bool:
    with closing(socket.socket(socket.AF_INET6)) as probe, suppress(OSError):
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_address_in_brackets_is_one_of_ipv6() -> None:
    port = free_port()
    async with Probes(pages(Health()), port, "[::1]"):
        reader, writer = await asyncio.open_connection("::1", port)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.transport.abort()
        with pytest.raises(InvalidSetting, match=rf"cannot listen at \[::1\]:{port}: Address already in use"):
            async with Probes({}, port, "::1"):
                pass


async def test_an_address_of_another_machine_is_an_error_too() -> None:
    with pytest.raises(InvalidSetting, match="http_port = 9000"):
        async with Probes({}, 9000, "203.0.113.1"):
            pass


async def test_when_it_stops_connections_end_and_the_port_is_free() -> None:
    port = free_port()
    async with Probes({}, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.transport.abort()
    async with Probes({}, port):
        pass
