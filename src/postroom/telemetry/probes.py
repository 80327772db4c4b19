"""Probes: a small HTTP server in the process for ``/metrics``, ``/livez`` and ``/readyz``."""

from __future__ import annotations

import asyncio
import os
import re
import socket
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

    from postroom.telemetry.health import Health

    Page = Callable[[], "Answer | Awaitable[Answer]"]

HOST = "127.0.0.1"
LONGEST_HEAD = 8192
SECONDS = 5.0
"""Seconds for a request to arrive, and again for the response to be sent."""
MAKING = 30.0
"""Seconds for producing a page."""
MOST_CONNECTIONS = 32
"""Concurrent connections. For another one, the oldest connection without a request is closed."""
TEXT = "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]+) (?:(?i:https?)://[\w.:%\[\]-]+)?(/[!-~]*) HTTP/1\.[01]\r\n")
_END_OF_LINE = b"\r\n"


class Answer(NamedTuple):
    """A page's response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


def pages(health: Health, metrics: Callable[[], Answer] | None = None) -> dict[str, Page]:
    """The pages for this health and these metrics. Metrics may be slow to produce."""
    found: dict[str, Page] = {
        "/livez": lambda: _health_page(health.not_live()),
        "/readyz": lambda: _health_page(health.not_ready()),
    }
    return found if metrics is None else {**found, "/metrics": _in_thread(metrics)}


def _in_thread(page: Callable[[], Answer]) -> Page:
    """Produce the page in a thread, one at a time: collectors in the registry may be slow."""
    thread = ThreadPoolExecutor(1, "postroom-metrics")
    return lambda: asyncio.get_running_loop().run_in_executor(thread, page)


def prometheus_page() -> Answer:
    """Everything in prometheus_client's default registry."""
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

    return Answer(HTTPStatus.OK, generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


def _health_page(problems: list[str]) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    body = msgspec.json.encode({"status": "unavailable" if problems else "ok", "problems": problems})
    return Answer(status, body + b"\n", "application/json")


class Probes:
    """Serves a few pages to GET and HEAD while it is entered, one request per connection.

    It is strict and small: anything that is not an HTTP/1.1 request gets an error at once. Entering it raises
    `InvalidSetting` if it cannot listen on the port.
    """

    def __init__(self, pages: Mapping[str, Page], port: int, host: str = HOST) -> None:
        self._pages = pages
        self._port = port
        self._host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        """Connections whose request has not arrived, the oldest first."""

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=LONGEST_HEAD)
        except OSError as error:
            host = f"[{self._host}]" if ":" in self._host else self._host
            raise InvalidSetting(
                f"http_port = {self._port}: cannot listen at {host}:{self._port}: {_reason(error)}; "
                "give another port, or another http_host"
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
            if not self._waiting:
                writer.transport.abort()
                return
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        self._waiting[writer] = None
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(lambda _: self._end(connection, writer))  # also for one that never started

    def _end(self, connection: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._connections.discard(connection)
        self._waiting.pop(writer, None)
        with suppress(OSError):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                request = await _request(reader)
            self._waiting.pop(writer, None)
            async with asyncio.timeout(MAKING):
                method, answer = await self._answer(request)
            async with asyncio.timeout(SECONDS):
                writer.write(_written(answer, with_body=method != b"HEAD"))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):  # the client is gone, or too slow
            pass

    async def _answer(self, request: tuple[bytes, bytes] | HTTPStatus) -> tuple[bytes, Answer]:
        if isinstance(request, HTTPStatus):
            return b"", _error(request)
        method, target = request
        page = self._pages.get(target.partition(b"?")[0].decode("ascii"))
        if page is None:
            return method, _error(HTTPStatus.NOT_FOUND)
        if method not in {b"GET", b"HEAD"}:
            return method, _error(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            made = page()
            return method, await made if isawaitable(made) else made
        except Exception:  # noqa: BLE001 - a failing metric must not stop the relay
            return method, _error(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, bytes] | HTTPStatus:
    """Method and target once the head of a request has arrived, or a status as soon as an error is seen.

    A client that speaks another protocol, such as TLS, may never send the end of a line.
    """
    first = await reader.readexactly(1)
    if not first.isupper():
        return HTTPStatus.BAD_REQUEST
    try:
        line = first + await reader.readuntil(b"\n")
        request = _REQUEST.fullmatch(line)
        if request is None:
            return HTTPStatus.BAD_REQUEST
        length = len(line)
        while line != _END_OF_LINE:
            line = await reader.readuntil(b"\n")
            length += len(line)
            if length > LONGEST_HEAD:
                return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            if not line.endswith(_END_OF_LINE):
                return HTTPStatus.BAD_REQUEST
    except asyncio.LimitOverrunError:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    method, target = request.groups()
    return method, target


def _reason(error: OSError) -> str:
    """The operating system's text: asyncio would repeat the address."""
    if error.errno is None or isinstance(error, socket.gaierror):  # its error numbers are different
        return error.strerror or type(error).__name__
    return os.strerror(error.errno)


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
    return "\r\n".join(head).encode() + 2 * _END_OF_LINE + (answer.body if with_body else b"")
