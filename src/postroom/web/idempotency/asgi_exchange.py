"""One keyed request in an ASGI application: its `receive` and `send`, until the response is recorded and sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.web.http import respond
from postroom.web.idempotency.response_state import Action, ResponseState

if TYPE_CHECKING:
    from postroom.web.http import Event
    from postroom.web.idempotency.core import Core
    from postroom.web.idempotency.disconnects import Client
    from postroom.web.idempotency.keyed_request import KeyedRequest
    from postroom.web.idempotency.ledger_connections import LedgerConnections


class AsgiExchange:
    """Acts on the state of the response.

    A disconnect is not reported to the application, so that it finishes its work. A stream may have no end: there the
    disconnect is reported after `drain_seconds`, and the stream counts as done.
    """

    def __init__(self, core: Core, connections: LedgerConnections, keyed: KeyedRequest, client: Client) -> None:
        self.is_disconnect_reported = False
        """The application knows that its client has disconnected, so what it raises is no failure."""
        self._flow = core.flow
        self._drive = connections.drive
        self._keyed = keyed
        self._client = client
        self._response = ResponseState(core.policy)
        self._settling = asyncio.Lock()
        self._request_read = False
        self._may_report_disconnect = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._held: list[Event] = []
        self._is_sent = False

    async def renew_lease(self) -> None:
        """Hold the key for another lease, unless the response is recorded."""
        is_open = self._keyed.owed is not None or not self._response.is_settled
        if is_open and self._keyed.needs_renewal:
            await self._drive(self._flow.renew(self._keyed.entry))

    async def receive(self) -> Event:
        """The whole request first. A disconnect is reported once the response is recorded, or has no end."""
        if not self._request_read:
            self._request_read = True
            return {"type": "http.request", "body": self._client.body, "more_body": False}
        await self._may_report_disconnect.wait()
        return await self._client.receive()

    async def send(self, event: Event) -> None:
        """Take an event of the response. Raises `ConnectionResetError` after a reported disconnect."""
        if self.is_disconnect_reported:
            raise ConnectionResetError("the client has disconnected")
        match event["type"]:
            case "http.response.start":
                if not self._is_sent:
                    self._held = [event]
                self._response.start(int(event["status"]), _headers(event))
                if self._response.is_event_stream:
                    self._may_report_disconnect.set()
                self._watch_if_streamed()
            case "http.response.body" if not self._response.is_settled:
                self._held.append(event)
                action = self._response.add(event.get("body", b""), more=event.get("more_body", False))
                self._watch_if_streamed()
                await self._act(action)
            case _:
                await self._client.send(event)

    async def close(self, *, failed: bool = False) -> None:
        """The application has ended: record the response if it is whole, else let the request run again.

        A response that could not be recorded while the handler's transaction was open is recorded now.
        """
        failed = failed or self._keyed.failed
        async with self._settling:
            if self._response.is_settled:
                await self._settle_owed(failed=failed)
            else:
                await self._settle(self._response.end(failed=failed, disconnected=self._client.is_disconnected))
        if self._watching is not None:
            self._watching.cancel()

    def _watch_if_streamed(self) -> None:
        if self._response.is_streamed and self._watching is None:
            self._watching = asyncio.ensure_future(self._watch_for_disconnect())

    async def _watch_for_disconnect(self) -> None:
        await self._client.until_disconnected()
        await asyncio.sleep(self._response.drain_seconds)
        if self._response.is_settled:
            return
        self.is_disconnect_reported = True
        self._may_report_disconnect.set()
        await self._act(self._response.abandon(failed=self._keyed.failed))

    async def _act(self, action: Action) -> None:
        if action is Action.SEND:
            await self._send_held()
        elif action is not Action.HOLD:
            async with self._settling:
                if not self._response.is_settled:
                    await self._settle(action)

    async def _settle(self, action: Action) -> None:
        if action is Action.RECORD:
            await self._record()
        else:
            await self._release()
        self._may_report_disconnect.set()

    async def _record(self) -> None:
        record, instead = self._response.record(), None
        if self._keyed.may_commit(record):
            self._keyed.owed = record
        else:
            instead = await self._drive(self._flow.record(self._keyed, record))
        self._response.settle()
        if instead is not None and not self._is_sent:
            await respond(self._client.send, instead)
        else:
            await self._send_held()

    async def _release(self) -> None:
        self._response.settle()
        await self._drive(self._flow.release(self._keyed.entry))
        if self._response.is_whole:
            await self._send_held()

    async def _settle_owed(self, *, failed: bool) -> None:
        owed, self._keyed.owed = self._keyed.owed, None
        if owed is None:
            return
        if failed:
            await self._drive(self._flow.release(self._keyed.entry))
        else:
            await self._drive(self._flow.record(self._keyed, owed))

    async def _send_held(self) -> None:
        held, self._held, self._is_sent = self._held, [], True
        for event in held:
            await self._client.send(event)


def _headers(start: Event) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers") or ())
