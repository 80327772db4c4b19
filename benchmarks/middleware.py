"""The cost of the idempotency middleware per request, with and without a key, next to the bare application.

The application is Starlette's, called in the same process, so that no server and no network is measured with it. Its
handler inserts a row in a transaction of its own; sixteen clients send requests concurrently.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.rounds import create_tables, per_second, show
from postroom.store.connections.urls import resolve
from postroom.web import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

    Keys = Callable[[], str | None]

CLIENTS = 16
REQUESTS = {"PostgreSQL": 2000, "SQLite": 800}
BODY = b'{"item": "book"}'
INSERT = text("INSERT INTO bill (item) VALUES ('book')")


def main() -> None:
    """Measure on both databases."""
    with closing(PostgreSQL()) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        server.create_database("shop")
        for name, url in {"PostgreSQL": server.url("shop"), "SQLite": f"sqlite:///{folder}/shop.db"}.items():
            create_tables(url)
            engine = create_engine(resolve(url))
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE bill (item VARCHAR(20))"))
            engine.dispose()
            with asyncio.Runner() as runner:
                _Shop(url, runner, REQUESTS[name]).measure(name)


class _Shop:
    """The application, bare and behind the middleware."""

    def __init__(self, url: str, runner: asyncio.Runner, requests: int) -> None:
        self._runner = runner
        self._requests = requests
        self._engine = create_async_engine(resolve(url, asynchronous=True), pool_size=CLIENTS)
        self._bare = Starlette(routes=[Route("/bills", self._bill, methods=["POST"])])
        self._kept = IdempotencyMiddleware(self._bare, database=url)
        self._numbers = count()
        self._joins = False

    def measure(self, database: str) -> None:
        variants = {
            "bare": lambda: self._ask(self._bare, lambda: None),
            "no key": lambda: self._ask(self._kept, lambda: None),
            "a new key": lambda: self._ask(self._kept, self._new),
            "a new key, joined": lambda: self._ask(self._kept, self._new, joins=True),
            "a key again": lambda: self._ask(self._kept, lambda: "again"),
        }
        self._runner.run(_client(self._kept, lambda: "again", iter([0])))  # what is then asked for again
        rates = per_second(variants, rounds=3)
        show(f"requests into {database}, {CLIENTS} clients", rates, "bare", "requests/s")
        for name, rate in rates.items():
            print(f"  {name:<44} {CLIENTS / rate * 1000:>10.2f} ms a request")
        self._runner.run(self._close())

    def _new(self) -> str:
        return f"key-{next(self._numbers)}"

    def _ask(self, app: Any, keys: Keys, *, joins: bool = False) -> int:
        self._joins = joins
        self._runner.run(self._ask_all(app, keys))
        return self._requests

    async def _ask_all(self, app: Any, keys: Keys) -> None:
        left = iter(range(self._requests))
        await asyncio.gather(*(_client(app, keys, left) for _ in range(CLIENTS)))

    async def _bill(self, request: Request) -> JSONResponse:
        answer = JSONResponse({"status": "billed"}, 201)
        async with self._engine.begin() as connection:
            await connection.execute(INSERT)
            if self._joins:
                await request.scope[ENVIRON_KEY].afinish(connection, answer)
        return answer

    async def _close(self) -> None:
        await self._kept.close()
        await self._engine.dispose()


async def _client(app: Any, keys: Keys, left: Iterator[int]) -> None:
    for _ in left:
        key = keys()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
        if key is not None:
            headers += [(b"idempotency-key", key.encode()), (b"authorization", b"Bearer a")]
        await _request(app, headers)


async def _request(app: Any, headers: list[tuple[bytes, bytes]]) -> None:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/bills",
        "raw_path": b"/bills",
        "query_string": b"",
        "headers": headers,
    }
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        statuses.extend([event["status"]] if "status" in event else [])

    await app(scope, receive, send)
    if statuses != [201]:
        raise RuntimeError(f"answered {statuses}")
