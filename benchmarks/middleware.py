"""The cost of the idempotency middleware per request, with and without a key, next to the bare application.

The applications are Starlette's and a plain one of WSGI, called in the same process, so that no server and no network
is measured with them. Their handler inserts a row in a transaction of its own; sixteen clients send requests
concurrently. For PostgreSQL, also what each request costs: processor time here and in the server, and transactions.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from benchmarks.rounds import create_tables, per_second
from benchmarks.server_costs import processor_time
from postroom.idempotency import Response
from postroom.store.connections.urls import resolve
from postroom.web import IdempotencyMiddleware
from postroom.web.idempotency.keyed_request import ENVIRON_KEY
from postroom.web.wsgi import IdempotencyMiddleware as WsgiIdempotencyMiddleware
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request

    Keys = Callable[[], str | None]

CLIENTS = 16
REQUESTS = {"PostgreSQL": 1600, "SQLite": 400}
ROUNDS = 3
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
            costs = _Costs(server, url if name == "PostgreSQL" else None)
            for shop in (_AsgiShop(url, REQUESTS[name]), _WsgiShop(url, REQUESTS[name])):
                with closing(shop):
                    _measure(shop, name, costs)


def _measure(shop: _Shop, database: str, costs: _Costs) -> None:
    numbers = count()

    def new() -> str:
        return f"{shop.title}-{next(numbers)}"

    variants = {
        "bare": lambda: shop.ask(lambda: None, bare=True),
        "no key": lambda: shop.ask(lambda: None),
        "a new key": lambda: shop.ask(new),
        "a new key, joined": lambda: shop.ask(new, joins=True),
        "a key again": lambda: shop.ask(lambda: "again"),
    }
    shop.ask(lambda: "again")  # connects; what is then asked for again
    shop.ask(lambda: None, bare=True)
    measured = {name: costs.noted(name, variant) for name, variant in variants.items()}
    rates = per_second(measured, rounds=ROUNDS)
    print(f"\nrequests into {database}, {shop.title}, {CLIENTS} clients; µs of processor time, and transactions, each")
    for name, rate in rates.items():
        print(f"  {name:<20} {rate:>8,.0f}/s   {rate / rates['bare']:.2f} of bare   {costs.of(name)}")


class _Cost(NamedTuple):
    """Of one request."""

    here: float
    server: float
    transactions: float


class _Costs:
    """What requests cost, noted while they run. The server's costs need its URL."""

    def __init__(self, server: PostgreSQL, url: str | None) -> None:
        self._server = server
        self._url = url
        self._noted: dict[str, list[_Cost]] = {}

    def noted(self, name: str, variant: Callable[[], int]) -> Callable[[], int]:
        self._noted[name] = []

        def run() -> int:
            before = self._spent()
            done = variant()
            each = (1e6 / done, 1e6 / done, 1 / done)
            self._noted[name].append(
                _Cost(*((now - then) * share for now, then, share in zip(self._spent(), before, each, strict=True)))
            )
            return done

        return run

    def of(self, name: str) -> str:
        here, server, transactions = (median(values) for values in zip(*self._noted[name], strict=True))
        if self._url is None:
            return f"Python {here:,.0f}"
        return f"Python {here:>5,.0f}   PostgreSQL {server:>5,.0f}   {transactions:.1f} transactions"

    def _spent(self) -> _Cost:
        return _Cost(time.process_time(), processor_time(self._server), self._transactions())

    def _transactions(self) -> int:
        if self._url is None:
            return 0
        with psycopg.connect(self._url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        return found[0] if found else 0


class _Shop(Protocol):
    """An application, bare and behind the middleware."""

    title: str

    def ask(self, keys: Keys, *, bare: bool = False, joins: bool = False) -> int: ...
    def close(self) -> None: ...


class _AsgiShop:
    """On one event loop."""

    title = "ASGI"

    def __init__(self, url: str, requests: int) -> None:
        self._runner = asyncio.Runner()
        self._requests = requests
        self._engine = create_async_engine(resolve(url, asynchronous=True), pool_size=CLIENTS)
        self._bare = Starlette(routes=[Route("/bills", self._bill, methods=["POST"])])
        self._kept = IdempotencyMiddleware(self._bare, database=url)
        self._joins = False

    def ask(self, keys: Keys, *, bare: bool = False, joins: bool = False) -> int:
        self._joins = joins
        self._runner.run(self._ask_all(self._bare if bare else self._kept, keys))
        return self._requests

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _ask_all(self, app: Any, keys: Keys) -> None:
        left = iter(range(self._requests))
        await _client(app, keys, iter([next(left)]))
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


class _WsgiShop:
    """In threads."""

    title = "WSGI"

    def __init__(self, url: str, requests: int) -> None:
        self._requests = requests
        self._threads = ThreadPoolExecutor(CLIENTS)
        self._engine = create_engine(resolve(url), pool_size=CLIENTS)
        self._kept = WsgiIdempotencyMiddleware(self._bill, database=url)
        self._joins = False

    def ask(self, keys: Keys, *, bare: bool = False, joins: bool = False) -> int:
        self._joins = joins
        app = self._bill if bare else self._kept
        self._ask(app, keys())
        keys_of_all = [keys() for _ in range(self._requests - 1)]
        for _ in self._threads.map(lambda key: self._ask(app, key), keys_of_all):
            pass
        return self._requests

    def close(self) -> None:
        self._threads.shutdown()
        self._kept.close()
        self._engine.dispose()

    def _ask(self, app: Any, key: str | None) -> None:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/bills",
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(BODY)),
            "wsgi.input": io.BytesIO(BODY),
        }
        if key is not None:
            environ |= {"HTTP_IDEMPOTENCY_KEY": key, "HTTP_AUTHORIZATION": "Bearer a"}
        statuses: list[str] = []
        b"".join(app(environ, lambda status, _headers: statuses.append(status)))
        if statuses != ["201 Created"]:
            raise RuntimeError(f"answered {statuses}")

    def _bill(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        answer = Response(201, (("content-type", "application/json"),), b'{"status": "billed"}')
        with self._engine.begin() as connection:
            connection.execute(INSERT)
            if self._joins:
                environ[ENVIRON_KEY].finish(connection, answer)
        start_response("201 Created", list(answer.headers))
        return [answer.body]
