"""One keyed request on its way through an ASGI application: its response is recorded before it is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.rules.replay import Response
from postroom.web.idempotency.recorded_responses import is_endless, sized

if TYPE_CHECKING:
    from postroom.web.idempotency.desks import AsyncDesk, Setup
    from postroom.web.idempotency.disconnects import Client, Event, Send
    from postroom.web.idempotency.keyed_request import KeyedRequest

SERVER_ERROR = 500


LAST_WORDS = 10.0
"""Seconds in which a stream whose client has gone may come to its end."""


class Exchange:
    """The `receive` and `send` of the application while it runs.

    A response is held back until it is whole and recorded. One that grows too large, or is a stream of events, is
    passed on as it comes, all but its last part, before which it is recorded that there was one. A response that tells
    of an error of the server is held back until the application has ended: frameworks send one and then raise.

    An application that is not told that its client has gone comes to its end. A stream may have none: after a while,
    and one of events at once, it is told, and counts as done then.
    """

    def __init__(self, desk: AsyncDesk, setup: Setup, keyed: KeyedRequest, client: Client) -> None:
        self.ended = False
        """It is recorded how the request ended, or that cannot be done."""
        self.told = False
        """The application knows that its client has gone, and what it then raises is no failure."""
        self._desk = desk
        self._setup = setup
        self._keyed = keyed
        self._client = client
        self._ending = asyncio.Lock()
        self._request_read = False
        self._may_be_told = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._start: Event | None = None
        self._start_sent = False
        self._parts: list[Event] = []
        self._size = 0
        self._streaming = False
        self._endless = False
        self._whole = False

    @property
    def _status(self) -> int:
        return int(self._start["status"]) if self._start else SERVER_ERROR

    async def receive(self) -> Event:
        """The request, whole. That the client has gone is told when the response is recorded, or has no end."""
        if not self._request_read:
            self._request_read = True
            return {"type": "http.request", "body": self._client.body, "more_body": False}
        await self._may_be_told.wait()
        return await self._client.receive()

    async def send(self, event: Event) -> None:
        """Take a part of the response."""
        if self.told:
            raise ConnectionResetError("the client has gone")
        match event["type"]:
            case "http.response.start":
                self._start = event
                if is_endless(_headers(event)) and event["status"] < SERVER_ERROR:
                    self._endless = True
                    self._begin_streaming()
                    self._may_be_told.set()
            case "http.response.body" if not self.ended:
                await self._take(event)
            case _:
                await self._client.send(event)

    async def close(self, *, failed: bool = False) -> None:
        """The application has ended: unless its response is whole, or if it failed, the request may run again.

        What could not be recorded while its transaction was open, can be now.
        """
        failed = failed or self._keyed.failed
        async with self._ending:
            if self.ended:
                await self._settle(failed=failed)
            elif (self._whole and not failed) or (self._endless and (self._client.has_gone or not failed)):
                await self._conclude()
            else:
                await self._give_up()
        if self._watching is not None:
            self._watching.cancel()

    def _begin_streaming(self) -> None:
        if not self._streaming:
            self._streaming = True
            self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """Wait for the client to go, and then for the stream's end, but not for ever."""
        await self._client.until_gone()
        if not self._endless:
            await asyncio.sleep(LAST_WORDS)
        if self.ended:
            return
        self.told = True
        self._may_be_told.set()
        async with self._ending:
            if not self.ended:
                await self._conclude()

    async def _take(self, event: Event) -> None:
        self._parts.append(event)
        self._size += len(event.get("body", b""))
        if self._size > self._setup.policy.max_response_bytes:
            self._begin_streaming()
        self._whole = not event.get("more_body", False)
        if self._whole and self._status < SERVER_ERROR:
            async with self._ending:
                if not self.ended:
                    await self._conclude()
        elif self._streaming and not self._whole:
            await self._flush()

    async def _conclude(self) -> None:
        """The response is whole, or as much of it as there will be."""
        record, instead = self._record(), None
        if self._keyed.may_commit(record):
            self._keyed.owed = record
        else:
            instead = await self._desk.drive(self._setup.clerk.conclude(self._keyed, record))
        self.ended = True
        if instead is not None and not self._start_sent:
            await respond(self._client.send, instead)
        else:
            await self._flush()
        self._may_be_told.set()

    async def _give_up(self) -> None:
        self.ended = True
        await self._desk.drive(self._setup.clerk.give_up(self._keyed.entry))
        if self._whole:
            await self._flush()
        self._may_be_told.set()

    async def _settle(self, *, failed: bool) -> None:
        owed, self._keyed.owed = self._keyed.owed, None
        if owed is None:
            return
        if failed:
            await self._desk.drive(self._setup.clerk.give_up(self._keyed.entry))
        else:
            await self._desk.drive(self._setup.clerk.conclude(self._keyed, owed))

    def _record(self) -> Response:
        headers = _headers(self._start or {})
        if self._streaming:
            return self._setup.policy.not_kept(Response(self._status, headers))
        body = b"".join(part.get("body", b"") for part in self._parts)
        return self._setup.policy.kept(Response(self._status, headers, body))

    async def _flush(self) -> None:
        if not self._start_sent and self._start is not None:
            self._start_sent = True
            await self._client.send(self._start)
        parts, self._parts = self._parts, []
        for part in parts:
            await self._client.send(part)


async def respond(send: Send, response: Response) -> None:
    """Send a response of our own, or one that was recorded."""
    whole = sized(response)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in whole.headers]
    await send({"type": "http.response.start", "status": whole.status, "headers": headers})
    await send({"type": "http.response.body", "body": whole.body})


def _headers(start: Event) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers") or ())
