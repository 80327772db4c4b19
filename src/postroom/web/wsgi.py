"""The idempotency middleware for WSGI: Flask, or any other application."""

from __future__ import annotations

import io
from functools import cache
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from postroom.rules.replay import Response
from postroom.web.http import sized
from postroom.web.idempotency.core import Core
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from postroom.web.idempotency.lease_renewal import LeaseRenewal
from postroom.web.idempotency.ledger_connections import ThreadLedgerConnections
from postroom.web.idempotency.policy import check_length
from postroom.web.idempotency.problems import RequestRefused, request_incomplete
from postroom.web.idempotency.response_state import Action
from postroom.web.idempotency.sync_exchange import RecordedStream, SyncExchange
from postroom.web.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from postroom.rules.replay import Entry
    from postroom.web.idempotency.options import OptionArguments

    Environ = dict[str, Any]
    StartResponse = Callable[..., Any]
    Application = Callable[[Environ, StartResponse], Iterable[bytes]]

_CHUNK = 65536
_SERVERS_OWN = ("REMOTE_USER", "SSL_CLIENT_CERT", "SSL_CLIENT_S_DN", "SSL_CLIENT_M_SERIAL")


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    ``database`` is the URL of the ledger's database, where `postroom init` has been run. `Options` lists the other
    options. Connections are opened by the first keyed request and closed at the end of the program. Raises
    `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, app: Application, **options: Unpack[OptionArguments]) -> None:
        self._app = app
        self._core = Core(options)
        self._connections = ThreadLedgerConnections(self._core.settings, self._core.requests)
        self._renewal = LeaseRenewal(self._core.lease, self._renew)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        try:
            return self._handle(environ, start_response)
        except RequestRefused as refused:
            return _respond(environ, start_response, refused.response)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def find_route(self, environ: Environ) -> str:
        """The path's template, for a framework that can tell; empty if unknown."""
        del environ
        return ""

    def _handle(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        policy = self._core.policy
        candidate = policy.candidate(_request(environ, lambda: self.find_route(environ)))
        if candidate is None:
            return self._app(environ, start_response)
        body = _read(candidate.request, policy.max_body_bytes)
        entry = policy.entry(candidate, body)
        is_cut = len(body) > policy.max_body_bytes
        environ["wsgi.input"] = _Replayed(body, environ["wsgi.input"]) if is_cut else io.BytesIO(body)
        if entry is None:
            return self._app(environ, start_response)
        admitted = self._connections.drive(self._core.flow.admit(entry))
        if isinstance(admitted, Response):
            return _respond(environ, start_response, admitted)
        keyed = environ[ENVIRON_KEY] = self._core.keyed_request(admitted)
        exchange = SyncExchange(self._core, self._connections, keyed, self._renewal)
        with exchange.released_on_error():
            return self._run(environ, start_response, exchange)

    def _run(self, environ: Environ, start_response: StartResponse, exchange: SyncExchange) -> Iterable[bytes]:
        """Call the application. Its response is held back until it is recorded, or streamed."""
        held_start = _HeldStart(exchange)
        parts = held_start.parts(self._app(environ, held_start.start_response))
        held: list[bytes] = []
        for part in parts:
            held.append(part)
            if part and exchange.response.add(part, more=True) is Action.SEND:
                start_response(*held_start.given)
                return RecordedStream(exchange, chain(held, parts), parts.close)
        given = held_start.given
        instead = exchange.finish()
        if instead is not None:
            return _respond(environ, start_response, instead)
        start_response(*given)
        return held

    def _renew(self, entry: Entry) -> None:
        self._connections.drive(self._core.flow.renew(entry))


class _HeldStart:
    """The `start_response` of an application, held back from the server, and its body, held to PEP 3333."""

    def __init__(self, exchange: SyncExchange) -> None:
        self._exchange = exchange
        self._given: tuple[str, list[tuple[str, str]]] | None = None
        self._written: list[bytes] = []
        self._is_begun = False  # the first bytes have come, with which a server would have sent the headers

    @property
    def given(self) -> tuple[str, list[tuple[str, str]]]:
        """Status and headers. Raises `RuntimeError` if the application has not given them."""
        if self._given is None:
            raise RuntimeError("the application has not called start_response")
        return self._given

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """After an error, the application may call it again; after the first bytes, that raises the error."""
        if exc_info:
            self._exchange.keyed.failed = True
            if self._is_begun:
                raise exc_info[1].with_traceback(exc_info[2])
        elif self._given is not None:
            raise RuntimeError("the application has called start_response twice, and without exc_info")
        self._given = (status, headers)
        self._exchange.response.start(int(status[:3]), tuple(headers))
        return self._write

    def parts(self, body: Iterable[bytes]) -> Generator[bytes]:
        """The body's parts, each after what was passed to `write` before it. The body is closed at the end."""
        try:
            for part in body:
                yield from self._take_written()
                self._begin(part)
                yield part
            yield from self._take_written()
        finally:
            if hasattr(body, "close"):
                body.close()

    def _write(self, part: bytes) -> None:
        self._begin(part)
        self._written.append(part)

    def _begin(self, part: bytes) -> None:
        if part and not self._is_begun:
            self._is_begun = bool(self.given)

    def _take_written(self) -> Iterator[bytes]:
        written, self._written[:] = list(self._written), []
        yield from written


class _Replayed(io.RawIOBase):
    """First what has been read of a body, then the rest."""

    def __init__(self, body: bytes, rest: Any) -> None:
        self._body = io.BytesIO(body)
        self._rest = rest

    def readable(self) -> bool:
        """As the standard library has it."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As the standard library has it."""
        read = self._body.readinto(buffer)
        if not read:
            data = self._rest.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        return read


def told_by(environ: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the server itself says about whose request it is: by a login of its own, or a certificate."""
    return tuple((name.lower().replace("_", "-"), str(environ[name])) for name in _SERVERS_OWN if environ.get(name))


def _request(environ: Environ, find_route: Callable[[], str]) -> Request:
    path = _text(environ.get("PATH_INFO", "")) or "/"
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith("HTTP_") or (name in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value)
    }
    return Request(
        method=environ["REQUEST_METHOD"].upper(),
        path=path,
        target=environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""),
        query=environ.get("QUERY_STRING", ""),
        headers=tuple(headers.items()),
        raw=environ,
        find_route=cache(find_route),
        told_by_server=told_by(environ),
    )


def _read(request: Request, most: int) -> bytes:
    """The body, or its beginning if it is longer than ``most``. Raises `RequestRefused` if it ends too early."""
    check_length(request)
    announced, stream = request.announced_bytes, request.raw["wsgi.input"]
    left = (most + 1 if request.raw.get("wsgi.input_terminated") else 0) if announced is None else announced
    body = bytearray()
    while left > 0 and len(body) <= most:
        part = _read_part(stream, min(left, _CHUNK))
        if not part:
            break
        body += part
        left -= len(part)
    if len(body) <= most:
        check_length(request, len(body))
    return bytes(body)


def _read_part(stream: Any, size: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError:  # as some servers report a disconnect
        raise RequestRefused(request_incomplete("the connection was lost")) from None


def _text(value: str) -> str:
    """A text of the environ, which holds each byte as one character."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")


def _respond(environ: Environ, start_response: StartResponse, response: Response) -> Iterable[bytes]:
    is_head = environ["REQUEST_METHOD"].upper() == "HEAD"
    whole = response if is_head else sized(response)  # the length that it had is not kept, and it has no body
    try:
        phrase = HTTPStatus(whole.status).phrase
    except ValueError:
        phrase = "Unknown"
    start_response(f"{whole.status} {phrase}", list(whole.headers))
    return [] if is_head else [whole.body]
