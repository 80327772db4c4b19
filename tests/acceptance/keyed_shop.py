"""A shop whose orders come by HTTP with idempotency keys, as a Starlette application."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from postroom.web import IdempotencyMiddleware
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

LARGE = 3000
WHO = {"authorization": "Bearer a"}
KEY = {"idempotency-key": "7f9c", **WHO}


@asynccontextmanager
async def served(app: Callable[..., Any]) -> AsyncIterator[httpx.AsyncClient]:
    """Requests to the application behind a real server, with its lifespan."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    serving = asyncio.ensure_future(server.serve())
    try:
        await wait_for(lambda: server.started)
        [port] = {socket.getsockname()[1] for one in server.servers for socket in one.sockets}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, headers=WHO) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


class KeyedShop:
    """What it has done is in `effects`. It can be told to wait, or to fail."""

    def __init__(self, url: str, **options: Any) -> None:
        self.effects: list[bytes] = []
        self.begun = 0
        self.fails = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        routes = [
            Route("/orders", self.order, methods=["GET", "POST", "PATCH", "PUT"]),
            Route("/orders/{id}/pay", self.order, methods=["POST"]),
            Mount("/shops", routes=[Route("/{shop}/orders", self.order, methods=["POST"])]),
            Route("/large", self.large, methods=["POST"]),
            Route("/stream", self.stream, methods=["POST"]),
            Route("/broken-stream", self.broken_stream, methods=["POST"]),
            Route("/events", self.events, methods=["POST"]),
            Route("/endless", self.endless, methods=["POST"]),
            Route("/log", self.log, methods=["POST"]),
            Route("/silent", self.silent, methods=["POST"]),
            Route("/cancelled", self.cancelled, methods=["POST"]),
            Route("/empty", self.empty, methods=["POST"]),
            Route("/status/{status:int}", self.status, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)
        self.middleware = IdempotencyMiddleware(self.app, **{"database": url, "max_response_bytes": 2000, **options})

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Requests to it. Its errors come out as 500, as from a server."""
        transport = httpx.ASGITransport(self.middleware, raise_app_exceptions=False)
        try:
            async with httpx.AsyncClient(
                transport=transport, base_url="http://shop", timeout=30, headers=WHO
            ) as client:
                yield client
        finally:
            await self.middleware.close()

    async def order(self, request: Request) -> Response:
        number = await self._do(request)
        headers = {"location": f"/orders/{number}", "Set-Cookie": "theme=dark", "Authorization": "x", "X-Kind": "order"}
        return JSONResponse({"order": number}, 201, headers=headers)

    async def large(self, request: Request) -> Response:
        await self._do(request)
        return PlainTextResponse("x" * LARGE, 202)

    async def stream(self, request: Request) -> Response:
        return StreamingResponse(self._parts(await self._do(request), 30))

    async def broken_stream(self, request: Request) -> Response:
        return StreamingResponse(self._parts(await self._do(request), 30, broken=self.fails))

    async def events(self, request: Request) -> Response:
        return StreamingResponse(self._parts(await self._do(request), 2), media_type="text/event-stream")

    async def endless(self, request: Request) -> Response:
        number = await self._do(request)

        async def parts() -> AsyncIterator[bytes]:
            yield f"data: {number}\n\n".encode()
            while True:
                await asyncio.sleep(0.05)
                yield b": still here\n\n"

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def log(self, request: Request) -> Response:
        """Large, and without an end, though nothing says so."""
        await self._do(request)
        return StreamingResponse(self._without_end(0.01), media_type="application/x-ndjson")

    async def silent(self, request: Request) -> Response:
        """Large, and then says nothing more."""
        await self._do(request)
        return StreamingResponse(self._without_end(3600.0), media_type="application/x-ndjson")

    async def cancelled(self, request: Request) -> Response:
        await self._do(request)
        if len(self.effects) == 1:
            raise asyncio.CancelledError
        if len(self.effects) == 2 and (task := asyncio.current_task()):
            task.cancel()
            await asyncio.sleep(0)
        return PlainTextResponse("done")

    async def empty(self, request: Request) -> Response:
        await self._do(request)
        return Response(status_code=204)

    async def status(self, request: Request) -> Response:
        await self._do(request)
        return PlainTextResponse("as you wish", request.path_params["status"])

    async def _do(self, request: Request) -> int:
        self.begun += 1
        body = await request.body()
        await self.may_go_on.wait()
        if self.fails and request.url.path != "/broken-stream":
            raise RuntimeError("not today")
        self.effects.append(body)
        return len(self.effects)

    async def _without_end(self, pause: float) -> AsyncIterator[bytes]:
        while True:
            yield b"{}\n" * LARGE
            await asyncio.sleep(pause)

    async def _parts(self, number: int, count: int, *, broken: bool = False) -> AsyncIterator[bytes]:
        for part in range(count):
            if broken and part == count - 1:
                raise RuntimeError("in the middle")
            yield f"data: {number} {part} {'.' * 90}\n\n".encode()
