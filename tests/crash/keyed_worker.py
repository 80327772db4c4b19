"""A server with keyed requests as a process of its own, which dies, on demand, at a named point.

The points are made here, around the middleware's calls and in its application; the middleware knows nothing of them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import uvicorn
from sqlalchemy import Connection, create_engine, text
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

from postroom.store.connections.urls import resolve
from postroom.store.ledger.keyed_requests import KeyedRequests
from postroom.web import IdempotencyMiddleware, KeyedRequest
from postroom.web.idempotency.keyed_request import ENVIRON_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

LEASE = 1.0


class Point(StrEnum):
    """Where a server can die, in the order in which a request comes by."""

    ASKED = "before the entry is written"
    ADMITTED = "after the entry is committed, before the handler is called"
    WORKING = "in the handler's transaction, before its effect"
    RECORDED = "after effect and response are written, before they commit"
    COMMITTED = "after the handler's transaction has committed"
    FINISHING = "before the middleware records the response"
    FINISHED = "after the response is recorded, before it is sent"
    SENDING = "in the middle of sending it"


@dataclass(frozen=True)
class Fate:
    """Where a server dies; nowhere if None."""

    point: Point | None = None

    def meet(self, point: Point) -> None:
        if point is self.point:
            signal.raise_signal(signal.SIGKILL)

    def arrange(self) -> Iterator[Any]:
        """Patches by which the server meets its fate."""
        for name, before, after in (
            ("begin", Point.ASKED, Point.ADMITTED),
            ("finish", Point.FINISHING, Point.FINISHED),
        ):
            yield patch.object(KeyedRequests, name, self._around(getattr(KeyedRequests, name), before, after))

    def _around(self, original: Callable[..., Any], before: Point, after: Point) -> Callable[..., Any]:
        def steps(*args: Any) -> Any:
            self.meet(before)
            result = yield from original(*args)
            self.meet(after)
            return result

        return steps

    def sending(self, app: Any) -> Any:
        async def outer(scope: Any, receive: Any, send: Any) -> None:
            async def cut_off(event: Any) -> None:
                await send(event)
                if event["type"] == "http.response.start":
                    await asyncio.sleep(0.05)  # it is on its way
                    self.meet(Point.SENDING)

            await app(scope, receive, cut_off if scope["type"] == "http" else send)

        return outer


class Shop:
    """`/joined` records its response with its effect. `/apart` does not, but looks for what an earlier run has done."""

    def __init__(self, url: str, fate: Fate) -> None:
        self._engine = create_engine(resolve(url))
        self._fate = fate
        routes = [Route(path, self.bill, methods=["POST"]) for path in ("/joined", "/apart")]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, database=url, lease_seconds=LEASE)
        self.app = fate.sending(app)

    async def bill(self, request: Request) -> Response:
        work = self._joined if request.url.path == "/joined" else self._apart
        return await run_in_threadpool(work, request.scope[ENVIRON_KEY])

    def _joined(self, keyed: KeyedRequest) -> Response:
        with self._engine.begin() as connection:
            self._fate.meet(Point.WORKING)
            answer = _add_bill(connection, keyed)
            keyed.finish(connection, answer)
            self._fate.meet(Point.RECORDED)
        self._fate.meet(Point.COMMITTED)
        return answer

    def _apart(self, keyed: KeyedRequest) -> Response:
        with self._engine.begin() as connection:
            self._fate.meet(Point.WORKING)
            found = _find_bill(connection, keyed) if keyed.taken_over else None
            answer = found or _add_bill(connection, keyed)
            self._fate.meet(Point.RECORDED)
        self._fate.meet(Point.COMMITTED)
        return answer


def _add_bill(connection: Connection, keyed: KeyedRequest) -> Response:
    number = connection.execute(text("SELECT count(*) + 1 FROM bill")).scalar_one()
    values = {"number": number, "name": keyed.key}
    connection.execute(text("INSERT INTO bill (number, name) VALUES (:number, :name)"), values)
    return JSONResponse({"bill": number}, 201)


def _find_bill(connection: Connection, keyed: KeyedRequest) -> Response | None:
    statement = text("SELECT number FROM bill WHERE name = :name")
    number = connection.execute(statement, {"name": keyed.key}).scalar_one_or_none()
    return None if number is None else JSONResponse({"bill": number}, 201)


def serve(_name: str, url: str, port: Path, fate: Fate) -> None:
    """Serve until killed, on the port that is then in the file."""
    with ExitStack() as patches:
        for patched in fate.arrange():
            patches.enter_context(patched)
        listening = patches.enter_context(socket.create_server(("127.0.0.1", 0)))
        new = port.with_suffix(".new")
        new.write_text(str(listening.getsockname()[1]))
        new.rename(port)  # whole at once
        config = uvicorn.Config(Shop(url, fate).app, log_level="error", ws="none")
        uvicorn.Server(config).run([listening])
