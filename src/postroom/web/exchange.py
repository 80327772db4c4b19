"""One keyed request on its way through an ASGI application: its response is recorded before it is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from postroom.rules.replay import Response
from postroom.web.responses import is_endless, sized

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from postroom.web.desks import AsyncDesk, Setup
    from postroom.web.joining import KeyedRequest

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]


class Exchange:
    """The `receive` and `send` of the application while it runs.

    A response is held back until it is whole and recorded. One that grows too large, or is a stream of events, is
    passed on as it comes, all but its last part, before which it is recorded that there was one.
    """

    def __init__(self, desk: AsyncDesk, setup: Setup, keyed: KeyedRequest, receive: Receive, send: Send) -> None:
        self.ended = False
        """It is recorded how the request ended, or that cannot be done."""
        self._desk = desk
        self._setup = setup
        self._keyed = keyed
        self._receive = receive
        self._send = send
        self._request_read = False
        self._answered = asyncio.Event()
        self._client_gone = False
        self._start: Event | None = None
        self._start_sent = False
        self._parts: list[Event] = []
        self._size = 0
        self._streaming = False

    async def receive(self) -> Event:
        """The request, whole. That the client has gone is told only when the response is recorded."""
        if not self._request_read:
            self._request_read = True
            return await self._receive()
        await self._answered.wait()
        return await self._receive()

    async def send(self, event: Event) -> None:
        """Take a part of the response."""
        match event["type"]:
            case "http.response.start":
                self._start = event
                self._streaming = is_endless(_headers(event))
            case "http.response.body" if not self.ended:
                await self._take(event)
            case _:
                await self._pass_on(event)

    async def give_up(self) -> None:
        """The application has ended: unless its response is whole, the request may run again."""
        if self.ended:
            return
        self.ended = True
        await self._desk.drive(self._setup.clerk.give_up(self._keyed.entry))
        self._answered.set()

    def leave(self) -> None:
        """Nobody listens any more."""
        self._client_gone = True

    async def _take(self, event: Event) -> None:
        self._parts.append(event)
        self._size += len(event.get("body", b""))
        self._streaming = self._streaming or self._size > self._setup.policy.max_response_bytes
        if not event.get("more_body", False):
            await self._end()
        elif self._streaming:
            await self._flush()

    async def _end(self) -> None:
        """The response is whole."""
        instead = await self._desk.drive(self._setup.clerk.conclude(self._keyed, self._record()))
        self.ended = True
        if instead is not None and not self._start_sent:
            await respond(self._pass_on, instead)
        else:
            await self._flush()
        self._answered.set()

    def _record(self) -> Response:
        start = self._start or {"status": 500}
        policy = self._setup.policy
        if self._streaming:
            return policy.not_kept(Response(start["status"], _headers(start)))
        body = b"".join(part.get("body", b"") for part in self._parts)
        return policy.kept(Response(start["status"], _headers(start), body))

    async def _flush(self) -> None:
        if not self._start_sent and self._start is not None:
            self._start_sent = True
            await self._pass_on(self._start)
        parts, self._parts = self._parts, []
        for part in parts:
            await self._pass_on(part)

    async def _pass_on(self, event: Event) -> None:
        """Send; where the client has gone, the application still comes to its end."""
        if self._client_gone:
            return
        try:
            await self._send(event)
        except OSError:
            self._client_gone = True


async def respond(send: Send, response: Response) -> None:
    """Send a response of our own, or one that was recorded."""
    whole = sized(response)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in whole.headers]
    await send({"type": "http.response.start", "status": whole.status, "headers": headers})
    await send({"type": "http.response.body", "body": whole.body})


def _headers(start: Event) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers") or ())
