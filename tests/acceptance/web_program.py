"""A web shop as a program: ``python -m tests.acceptance.web_program FRAMEWORK DATABASE FILE``.

Each request writes an order and adds its message; a relay in the same process appends what it sends to the file. The
first line that it prints is its address.
"""

# Without postponed annotations, which frameworks could not resolve: they name what functions have.

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from postroom import Message, Outbox, Relay
from postroom.bound_outbox import BoundOutbox
from postroom.store.connections.urls import resolve
from postroom.web.background import Background
from postroom.web.lifespan import running

INSERT = text("INSERT INTO shop_order (number) VALUES (:number)")


class Shop:
    """What all of them share."""

    def __init__(self, url: str, sent: Path) -> None:
        self.url = url
        self._sent = sent
        self.relay = Relay(url, self._publish, poll_interval_sec=0.05)
        self.outbox = Outbox()

    def _publish(self, messages: list[Message]) -> None:
        with self._sent.open("a") as file:
            file.writelines(f"{message.json()}\n" for message in messages)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        engine = create_engine(resolve(self.url))
        with engine.begin() as connection:
            yield connection
        engine.dispose()

    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """A dependency: the request's own transaction."""
        async with self.asyncs.begin() as connection:
            yield connection

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[dict[str, str]]:
        """The application's own, with what the relay needs not."""
        self.asyncs = create_async_engine(resolve(self.url, asynchronous=True))
        yield {"shop": "open"}
        await self.asyncs.dispose()


def fastapi(shop: Shop) -> Any:
    """With the dependency."""
    from fastapi import Depends, FastAPI, Request

    from postroom.web.fastapi import outbox_on

    app = FastAPI(lifespan=running(shop.relay, lifespan=shop.lifespan))

    @app.post("/orders/{number}")
    async def order(
        number: int,
        request: Request,
        connection: Annotated[Any, Depends(shop.connection)],
        outbox: Annotated[BoundOutbox, Depends(outbox_on(shop.connection, shop.outbox))],
    ) -> str:
        await connection.execute(INSERT, {"number": number})
        await outbox.aadd("orders", number, key=number % 5)
        state: str = request.state.shop
        return state

    return app


def starlette(shop: Shop) -> Any:
    """With sync code in threads."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def order(request: Request) -> JSONResponse:
        number = request.path_params["number"]
        with shop.transaction() as connection:
            connection.execute(INSERT, {"number": number})
            shop.outbox.add(connection, "orders", number, key=number % 5)
        return JSONResponse("open")

    routes = [Route("/orders/{number:int}", order, methods=["POST"])]
    return Starlette(routes=routes, lifespan=running(shop.relay))


def litestar(shop: Shop) -> Any:
    """With the plugin."""
    from litestar import Litestar, post
    from litestar.di import NamedDependency, Provide
    from litestar.params import FromPath

    from postroom.web.litestar import PostroomPlugin

    @post("/orders/{number:int}")
    async def order(
        number: FromPath[int], db_session: NamedDependency[Any], outbox: NamedDependency[BoundOutbox]
    ) -> str:
        await db_session.execute(INSERT, {"number": number})
        await outbox.aadd("orders", number, key=number % 5)
        return "open"

    return Litestar(
        [order],
        lifespan=[shop.lifespan],
        dependencies={"db_session": Provide(shop.connection)},
        plugins=[PostroomPlugin(shop.relay, outbox=shop.outbox)],
    )


def quart(shop: Shop) -> Any:
    """With its own way of running something while it serves."""
    from quart import Quart

    app = Quart("shop")

    @app.while_serving
    async def lifespan() -> AsyncGenerator[None, None]:
        async with running(shop.relay, lifespan=shop.lifespan)(app):
            yield

    @app.post("/orders/<int:number>")
    async def order(number: int) -> str:
        async with shop.asyncs.begin() as connection:
            await connection.execute(INSERT, {"number": number})
            await shop.outbox.aadd(connection, "orders", number, key=number % 5)
        return "open"

    return app


def flask(shop: Shop) -> Any:
    """With a thread for the relay."""
    from flask import Flask

    app = Flask("shop")
    Background(shop.relay).init_app(app)

    @app.post("/orders/<int:number>")
    def order(number: int) -> str:
        with shop.transaction() as connection:
            connection.execute(INSERT, {"number": number})
            shop.outbox.add(connection, "orders", number, key=number % 5)
        return "open"

    return app


FRAMEWORKS = {"fastapi": fastapi, "starlette": starlette, "litestar": litestar, "quart": quart, "flask": flask}


def main(framework: str, url: str, sent: str) -> None:
    """Serve until SIGTERM."""
    app = FRAMEWORKS[framework](Shop(url, Path(sent)))
    if framework == "flask":
        from werkzeug.serving import make_server

        server = make_server("127.0.0.1", 0, app, threaded=True)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        _say(server.port)
        server.serve_forever()
        server.server_close()
        return
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        _say(listening.getsockname()[1])
        asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).serve([listening]))


def _say(port: int) -> None:
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
