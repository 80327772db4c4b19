"""The idempotency middleware for ASGI: Starlette, FastAPI, Litestar, or any other application."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from postroom.rules.replay import Response
from postroom.web.http import read_body, respond
from postroom.web.idempotency.asgi_exchange import AsgiExchange
from postroom.web.idempotency.core import Core
from postroom.web.idempotency.disconnects import Client
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from postroom.web.idempotency.lease_renewal import LoopLeaseRenewal
from postroom.web.idempotency.ledger_connections import LedgerConnections
from postroom.web.idempotency.problems import RequestRefused
from postroom.web.requests import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping

    from postroom.rules.replay import Entry
    from postroom.web.http import Body, Event, Receive, Scope, Send
    from postroom.web.idempotency.keyed_request import KeyedRequest
    from postroom.web.idempotency.options import OptionArguments

    Application = Callable[..., Awaitable[None]]  # frameworks type scope, receive and send each in their own way

STOPPING_SECONDS = 10.0
"""How long a stopping server waits for requests whose clients have disconnected."""
_UNREPLAYABLE = {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
"""Extensions by which a response would bypass the recording."""
_MOST_WRAPPERS = 50
_log = logging.getLogger("postroom.web")


class IdempotencyMiddleware:
    """Runs a request with an `Idempotency-Key` once; a client that asks again gets the same response.

    ``database`` is the URL of the ledger's database, where `postroom init` has been run. `Options` lists the other
    options. Connections are opened by the first keyed request and closed at the end of the lifespan. Raises
    `InvalidSetting` or `UnsupportedDatabase`.
    """

    def __init__(self, app: Application, **options: Unpack[OptionArguments]) -> None:
        self._app = app
        self._core = Core(options)
        self._connections = LedgerConnections(self._core.settings, self._core.requests)
        self._renewal = LoopLeaseRenewal(self._core.lease)
        self._runs: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI interface."""
        match scope["type"]:
            case "http":
                try:
                    await self._handle(scope, receive, send)
                except RequestRefused as refused:
                    await respond(send, refused.response)
            case "lifespan":
                await self._app(scope, receive, self._closing(send))
            case _:
                await self._app(scope, receive, send)

    async def close(self) -> None:
        """Wait a while for requests whose clients have disconnected, then close the connections.

        Call it if the application runs without a lifespan.
        """
        if self._runs:
            await asyncio.wait(self._runs, timeout=STOPPING_SECONDS)
        await self._connections.close()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        policy = self._core.policy
        candidate = policy.candidate(_request(scope, self._app))
        if candidate is None:
            await self._app(scope, receive, send)
            return
        body = await read_body(receive, policy.max_body_bytes)
        if body is None:
            return  # the client has disconnected before the request was whole
        entry = policy.entry(candidate, body.content)
        if entry is None:
            await self._app(scope, _replaying(body, receive), send)
            return
        client = Client(body.content, receive, send)
        await self._shielded(client, self._admit(scope, entry, client))

    async def _admit(self, scope: Scope, entry: Entry, client: Client) -> None:
        admitted = await self._connections.drive(self._core.flow.admit(entry))
        if isinstance(admitted, Response):
            await respond(client.send, admitted)
            return
        keyed = self._core.keyed_request(admitted)
        exchange = AsgiExchange(self._core, self._connections, keyed, client)
        await self._run({**scope, **_additions(scope, keyed)}, exchange, client)

    async def _run(self, scope: Scope, exchange: AsgiExchange, client: Client) -> None:
        """Call the application. If cancelled by the server, leave the rest to the lease."""
        self._renewal.add(exchange)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled() and client.is_given_up:
                raise
            await exchange.close(failed=True)
            if not exchange.is_disconnect_reported:
                raise
        else:
            await exchange.close()
        finally:
            self._renewal.remove(exchange)

    async def _shielded(self, client: Client, run: Coroutine[Any, Any, None]) -> None:
        """Let the run finish after its client has disconnected, so that the client can ask again for the response."""
        task = asyncio.create_task(run)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            client.disconnect()
            task.add_done_callback(_log_error)
            raise

    def _closing(self, send: Send) -> Send:
        async def passed_on(event: Event) -> None:
            if event["type"].startswith("lifespan.shutdown."):
                await self.close()
            await send(event)

        return passed_on


def route_of(scope: Mapping[str, Any], app: object) -> str:
    """The template of the path, such as ``/orders/{id}``, that Litestar, Starlette or FastAPI will choose.

    Empty if neither the scope, nor the next application, nor what that one wraps knows it.
    """
    known = scope.get("path_template")
    if isinstance(known, str):  # Litestar has chosen already
        return known
    with suppress(Exception):  # there is no such route, or the framework has another version
        for one in chain([scope.get("app")], _wrapped(app)):
            if hasattr(one, "asgi_router"):
                return _litestar_route(one.asgi_router, scope)
            if getattr(one, "routes", None):
                return _matching(one.routes, scope)
    return ""


def paths_of(scope: Mapping[str, Any]) -> tuple[str, ...]:
    """The path without the prefix at which the application is mounted, as each of the frameworks reads it.

    Servers differ in whether the path contains that prefix, and frameworks in how they find out.
    """
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    if not root or root not in path:
        return (path or "/",)
    after = path.removeprefix(root)
    found = (after if after.startswith("/") else path, path, path.split(root, maxsplit=1)[-1])
    return ("/",) if path == root else tuple(dict.fromkeys(one or "/" for one in found))


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
        told_by_server=_client_certificates(scope),
    )


def _client_certificates(scope: Scope) -> tuple[tuple[str, str], ...]:
    """The client's certificates, if the server reports them (ASGI's TLS extension)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    return tuple(("client-cert", str(certificate)) for certificate in tls.get("client_cert_chain") or ())


def _replaying(body: Body, receive: Receive) -> Receive:
    """First what has been read, then whatever comes."""
    given = False

    async def replay() -> Event:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body.content, "more_body": body.more}

    return replay


def _additions(scope: Scope, keyed: KeyedRequest) -> dict[str, Any]:
    extensions = scope.get("extensions") or {}
    kept = {name: value for name, value in extensions.items() if name not in _UNREPLAYABLE}
    return {ENVIRON_KEY: keyed, **({"extensions": kept} if extensions else {})}


def _is_cancelled() -> bool:
    """Whether somebody cancels the task, such as the application itself, or has merely raised such an error."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _log_error(run: asyncio.Task[None]) -> None:
    """Log the error of a run that nobody waits for."""
    if not run.cancelled() and (error := run.exception()) is not None:
        _log.error("a keyed request failed after its client had disconnected", exc_info=error)


def _wrapped(app: object) -> Iterator[Any]:
    """The application, and what it wraps, as middleware does."""
    for _ in range(_MOST_WRAPPERS):
        if app is None:
            return
        yield app
        app = getattr(app, "app", None)


def _litestar_route(router: Any, scope: Mapping[str, Any]) -> str:
    path = "/".join(part for part in paths_of(scope)[-1].split("/") if part)
    *_, template = router.handle_routing(path=f"/{path}", method=scope["method"])
    return template if isinstance(template, str) else ""


def _matching(routes: Any, scope: Mapping[str, Any]) -> str:
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "name", "") == "FULL":
            inner = getattr(route, "routes", None)
            path = str(getattr(route, "path", ""))
            return path + _matching(inner, {**scope, **child}) if inner else path
    return ""
