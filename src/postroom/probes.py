"""Probes: a process's own small HTTP server, for ``/metrics``, ``/livez`` and ``/readyz``."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from inspect import isawaitable
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from postroom.health import Health

    Page = Callable[[], "Answer | Awaitable[Answer]"]

HOST = "127.0.0.1"
LONGEST_HEAD = 8192
SECONDS = 5.0
"""For a request to arrive, and again for the answer to leave."""
MAKING = 30.0
"""Seconds for a page to be made."""
MOST_CONNECTIONS = 32
"""At the same time. Others are closed at once."""
TEXT = "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.[01]")
_END = b"\r\n\r\n"


class Answer(NamedTuple):
    """What a page says."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


def pages(health: Health, metrics: Callable[[], Answer] | None = None) -> dict[str, Page]:
    """The pages of a process that this is the health of. That of the metrics may take its time."""
    found: dict[str, Page] = {"/livez": lambda: _told(health.not_live()), "/readyz": lambda: _told(health.not_ready())}
    return found if metrics is None else {**found, "/metrics": _in_thread(metrics)}


def _in_thread(page: Callable[[], Answer]) -> Page:
    """The page, made in a thread, one at a time: whoever has figures in the registry may be slow to tell them."""
    thread = ThreadPoolExecutor(1, "postroom-metrics")
    return lambda: asyncio.get_running_loop().run_in_executor(thread, page)


def prometheus_page() -> Answer:
    """All of prometheus_client's own registry."""
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

    return Answer(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


def _told(problems: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    body = msgspec.json.encode({"status": "unavailable" if problems else "ok", "problems": problems})
    return Answer(status, body + b"\n", "application/json")


class Probes:
    """Answers GET and HEAD for a few pages, one request a connection, while it is entered.

    It is strict and small: what is no request in HTTP/1.1 is answered with an error, or not at all. Entering it raises
    `InvalidSetting` where the port cannot be had.
    """

    def __init__(self, pages: Mapping[str, Page], port: int, host: str = HOST) -> None:
        self._pages = pages
        self._port = port
        self._host = host
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=LONGEST_HEAD)
        except OSError as error:
            raise InvalidSetting(
                f"http_port = {self._port}: cannot listen at {self._host}:{self._port}: "
                f"{error.strerror or type(error).__name__}; give another port, or another http_host"
            ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                head = await _head(reader)
            async with asyncio.timeout(MAKING):
                method, answer = await self._answer(head)
            async with asyncio.timeout(SECONDS):
                writer.write(_written(answer, with_body=method != b"HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):  # whoever asked has gone, or takes too long
            pass
        finally:
            with suppress(OSError):
                writer.transport.abort()

    async def _answer(self, head: bytes | None) -> tuple[bytes, Answer]:
        if head is None:
            return b"", _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        request = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if request is None:
            return b"", _error(HTTPStatus.BAD_REQUEST)
        method, target = request.groups()
        page = self._pages.get(target.partition(b"?")[0].decode("ascii"))
        if page is None:
            return method, _error(HTTPStatus.NOT_FOUND)
        if method not in {b"GET", b"HEAD"}:
            return method, _error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            made = page()
            return method, await made if isawaitable(made) else made
        except Exception:  # noqa: BLE001 - a figure that cannot be had must not stop the relay
            return method, _error(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _head(reader: asyncio.StreamReader) -> bytes | None:
    """All of a request but its body; None where that is too long."""
    try:
        return await reader.readuntil(_END)
    except asyncio.LimitOverrunError:
        return None


def _error(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


def _written(answer: Answer, *, with_body: bool) -> bytes:
    head = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(["Allow: GET, HEAD"] if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else []),
    ]
    return "\r\n".join(head).encode() + _END + (answer.body if with_body else b"")
