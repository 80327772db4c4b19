"""The idempotency middleware for WSGI: Flask, or any other application."""

from __future__ import annotations

import io
from functools import cache
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from postroom.rules.replay import Response
from postroom.web.idempotency.answers import Answer
from postroom.web.idempotency.bodies import Replayed, read_body
from postroom.web.idempotency.desks import Desk, Setup
from postroom.web.idempotency.keyed_request import PLACE
from postroom.web.idempotency.policy import Refused
from postroom.web.idempotency.recorded_responses import is_endless, sized
from postroom.web.idempotency.sync_exchange import KeyedRun
from postroom.web.requests import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from postroom.web.idempotency.options import Given

    Environ = dict[str, Any]
    StartResponse = Callable[..., Any]
    Application = Callable[[Environ, StartResponse], Iterable[bytes]]


_SERVERS_OWN = ("REMOTE_USER", "SSL_CLIENT_CERT", "SSL_CLIENT_S_DN", "SSL_CLIENT_M_SERIAL")


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    ``database`` is the URL of the ledger's database, where `postroom init` has been run. `Options` lists what else can
    be chosen. Connections are opened by the first keyed request and closed at the program's end. Raises
    `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, app: Application, **options: Unpack[Given]) -> None:
        self._app = app
        self._setup = Setup(options)
        self._desk = Desk(self._setup)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        try:
            return self._handle(environ, start_response)
        except Refused as refused:
            return _respond(environ, start_response, refused.response)

    def close(self) -> None:
        """Close the connections."""
        self._desk.close()

    def find_route(self, environ: Environ) -> str:
        """The path's template, for a framework that can tell; empty where it is not known."""
        del environ
        return ""

    def _handle(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        asked = self._setup.policy.look_at(_request(environ, lambda: self.find_route(environ)))
        if asked is None:
            return self._app(environ, start_response)
        read = read_body(asked.request, self._setup.policy.max_body_bytes)
        if read.more:
            self._setup.policy.refuse_large(asked)
        entry = None if read.more else self._setup.policy.entry(asked, read.body)
        environ["wsgi.input"] = Replayed(read, environ["wsgi.input"]) if read.more else io.BytesIO(read.body)
        if entry is None:
            return self._app(environ, start_response)
        admitted = self._desk.drive(self._setup.clerk.admit(entry))
        if isinstance(admitted, Response):
            return _respond(environ, start_response, admitted)
        run = KeyedRun(self._desk, self._setup, self._setup.keyed(admitted))
        environ[PLACE] = run.keyed
        with run.failing():
            return self._run(environ, start_response, run)

    def _run(self, environ: Environ, start_response: StartResponse, run: KeyedRun) -> Iterable[bytes]:
        answer = Answer(run.keyed)
        parts = answer.parts(self._app(environ, answer.start))
        held: list[bytes] = []
        size = 0
        for part in parts:
            held.append(part)
            size += len(part)
            if part and (size > self._setup.policy.max_response_bytes or is_endless(answer.told[1])):
                start_response(*answer.told)
                return run.streamed(answer.response(), chain(held, parts), parts.close)
        whole = answer.response(b"".join(held))
        if run.has_failed(whole.status):
            run.give_up()
        elif (instead := run.conclude(whole)) is not None:
            return _respond(environ, start_response, instead)
        start_response(*answer.told)
        return held


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


def told_by(environ: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Whose request it is, as the server itself has found out: by a login of its own, or a certificate."""
    return tuple((name.lower().replace("_", "-"), str(environ[name])) for name in _SERVERS_OWN if environ.get(name))


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
