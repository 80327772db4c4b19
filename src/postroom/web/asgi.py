"""The idempotency middleware for ASGI: Starlette, FastAPI, Litestar, or any other application."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from postroom.rules.replay import Response
from postroom.web.idempotency.asgi_exchange import Exchange, respond
from postroom.web.idempotency.asgi_routes import paths_of, route_of
from postroom.web.idempotency.desks import AsyncDesk, Setup
from postroom.web.idempotency.disconnects import Client
from postroom.web.idempotency.keyed_request import PLACE
from postroom.web.idempotency.policy import Refused
from postroom.web.requests import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from postroom.rules.replay import Entry
    from postroom.web.idempotency.disconnects import Event, Receive, Send
    from postroom.web.idempotency.keyed_request import KeyedRequest
    from postroom.web.idempotency.options import Given

    Scope = MutableMapping[str, Any]
    Application = Callable[..., Awaitable[None]]  # frameworks type scope, receive and send each in their own way

LAST_WISH = 10.0
"""Seconds that a stopping server waits for requests whose clients have gone."""
_UNREPLAYABLE = {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
"""Extensions by which a response would bypass what records it."""
_log = logging.getLogger("postroom.web")


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    ``database`` is the URL of the ledger's database, where `postroom init` has been run. `Options` lists what else can
    be chosen. Connections are opened by the first keyed request and closed at the lifespan's end. Raises
    `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, app: Application, **options: Unpack[Given]) -> None:
        self._app = app
        self._setup = Setup(options)
        self._desk = AsyncDesk(self._setup)
        self._runs: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        match scope["type"]:
            case "http":
                try:
                    await self._handle(scope, receive, send)
                except Refused as refused:
                    await respond(send, refused.response)
            case "lifespan":
                await self._app(scope, receive, self._closing(send))
            case _:
                await self._app(scope, receive, send)

    async def close(self) -> None:
        """Wait a while for requests whose clients have gone, then close the connections.

        For applications that are run without a lifespan.
        """
        if self._runs:
            await asyncio.wait(self._runs, timeout=LAST_WISH)
        await self._desk.close()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._setup.policy.look_at(_request(scope, self._app))
        if asked is None:
            await self._app(scope, receive, send)
            return
        read = await _read(receive, self._setup.policy.max_body_bytes)
        if read is None:
            return  # the client has gone before the request was whole
        if read.too_large:
            self._setup.policy.refuse_large(asked)
        entry = None if read.too_large else self._setup.policy.entry(asked, read.body)
        if entry is None:
            await self._app(scope, _replaying(read, receive), send)
            return
        client = Client(read.body, receive, send)
        await self._shielded(client, self._admit(scope, entry, client))

    async def _admit(self, scope: Scope, entry: Entry, client: Client) -> None:
        admitted = await self._desk.drive(self._setup.clerk.admit(entry))
        if isinstance(admitted, Response):
            await respond(client.send, admitted)
            return
        keyed = self._setup.keyed(admitted)
        await self._run({**scope, **_additions(scope, keyed)}, Exchange(self._desk, self._setup, keyed, client), keyed)

    async def _run(self, scope: Scope, exchange: Exchange, keyed: KeyedRequest) -> None:
        """Call the application, and renew the lease meanwhile. Cancelled, it leaves the rest to the lease."""
        work = asyncio.ensure_future(self._app(scope, exchange.receive, exchange.send))
        try:
            while not (await asyncio.wait({work}, timeout=self._setup.lease / 2))[0]:
                if keyed.is_renewed and (keyed.owed or not exchange.ended):
                    await self._desk.drive(self._setup.clerk.renew(keyed.entry))
        except asyncio.CancelledError:
            work.cancel()
            raise
        try:
            work.result()
        except (Exception, asyncio.CancelledError):  # which the application has raised: we were not cancelled
            await exchange.close(failed=True)
            if not exchange.told:
                raise
        else:
            await exchange.close()

    async def _shielded(self, client: Client, run: Any) -> None:
        """Let the run come to its end though the client has gone, so that it can ask again for the response."""
        task = asyncio.create_task(run)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            client.leave()
            task.add_done_callback(_look_at)
            raise

    def _closing(self, send: Send) -> Send:
        async def passed_on(event: Event) -> None:
            if event["type"].startswith("lifespan.shutdown."):
                await self.close()
            await send(event)

        return passed_on


class _Read(NamedTuple):
    body: bytes
    more: bool
    too_large: bool


def _request(scope: Scope, app: Application) -> Request:
    path, *others = paths_of(scope)
    raw = scope.get("raw_path") or scope["path"].encode(errors="surrogatepass")
    return Request(
        method=scope["method"].upper(),
        path=path,
        target=raw.decode("latin-1"),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]),
        raw=scope,
        find_route=cache(lambda: route_of(scope, app)),
        other_paths=tuple(others),
        told_by_server=_told(scope),
    )


def _told(scope: Scope) -> tuple[tuple[str, str], ...]:
    """The client's certificate, where the server tells of it (the TLS extension of ASGI)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    return tuple(("client-cert", str(certificate)) for certificate in tls.get("client_cert_chain") or ())


async def _read(receive: Receive, most: int) -> _Read | None:
    """The body, or what has come of it when it was found to be too large; None where the client has gone."""
    body, more = bytearray(), True
    while more and len(body) <= most:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        body += event.get("body", b"")
        more = event.get("more_body", False)
    return _Read(bytes(body), more, len(body) > most)


def _replaying(read: _Read, receive: Receive) -> Receive:
    """What has been read, and then whatever else comes."""
    given = False

    async def replay() -> Event:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": read.body, "more_body": read.more}

    return replay


def _additions(scope: Scope, keyed: KeyedRequest) -> dict[str, Any]:
    extensions = scope.get("extensions") or {}
    kept = {name: value for name, value in extensions.items() if name not in _UNREPLAYABLE}
    return {PLACE: keyed, **({"extensions": kept} if extensions else {})}


def _look_at(run: asyncio.Task[None]) -> None:
    """An error of a run that nobody waits for."""
    if not run.cancelled() and (error := run.exception()) is not None:
        _log.error("a keyed request failed after its client had gone", exc_info=error)
