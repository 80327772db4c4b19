"""Disconnects in ASGI: the client of a keyed request, and how a server reports that it has disconnected."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.web.http import Event, Receive, Send

_log = logging.getLogger("postroom.web")


class Client:
    """Has sent its whole request, and waits for the response.

    A server reports a disconnect by an event, by an error of `send`, or by cancelling the request's task. What then
    becomes of the response is decided in `response_state`.
    """

    def __init__(self, body: bytes, receive: Receive, send: Send) -> None:
        self.body = body
        self._receive = receive
        self._send = send
        self._disconnected = asyncio.Event()
        self._is_watched = False
        self._served_by = asyncio.current_task()

    @property
    def is_given_up(self) -> bool:
        """Whether the server has ended or cancelled the task that serves it, as it does with all when it stops."""
        task = self._served_by
        return task is None or task.done() or task.cancelling() > 0

    @property
    def is_disconnected(self) -> bool:
        """Whether the client is known to have disconnected."""
        return self._disconnected.is_set()

    def disconnect(self) -> None:
        """The client has disconnected."""
        self._disconnected.set()

    async def receive(self) -> Event:
        """The next event: it can only be a disconnect."""
        if not self._is_watched:
            return await self._receive()
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Send, or do nothing after a disconnect: the application still finishes its work."""
        if self.is_disconnected:
            return
        try:
            await self._send(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the response does not arrive
            self.disconnect()
            if not isinstance(error, OSError):
                _log.warning("a response could not be sent: treated as a disconnect of its client", exc_info=error)

    async def until_disconnected(self) -> None:
        """Return when the client has disconnected. From now on, `receive` reports nothing else."""
        self._is_watched = True
        listening = asyncio.ensure_future(self._listen())
        try:
            await self._disconnected.wait()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        with suppress(Exception):  # a server that reports it by an error
            while (await self._receive())["type"] != "http.disconnect":
                pass
        self.disconnect()
