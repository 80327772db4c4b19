"""The client of a keyed request in ASGI: there, or gone, however a server tells."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]

_log = logging.getLogger("postroom.web")


class Client:
    """Has sent its request, whole, and waits for the response.

    That it has gone is told by an event, by an error of `send`, or by the cancellation of who serves it.
    """

    def __init__(self, body: bytes, receive: Receive, send: Send) -> None:
        self.body = body
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()
        self._is_listened_for = False

    @property
    def has_gone(self) -> bool:
        """Whether nobody listens any more, as far as is known."""
        return self._gone.is_set()

    def leave(self) -> None:
        """Nobody listens any more."""
        self._gone.set()

    async def receive(self) -> Event:
        """The next event, which can only be that the client has gone."""
        if not self._is_listened_for:
            return await self._receive()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        """Send; nothing where the client has gone, for then the application still comes to its end."""
        if self.has_gone:
            return
        try:
            await self._send(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, no more of the response arrives
            self.leave()
            if not isinstance(error, OSError):
                _log.warning("a response could not be sent, which counts as if its client had gone", exc_info=error)

    async def until_gone(self) -> None:
        """Return when the client has gone. From then on `receive` has nothing to say but that."""
        self._is_listened_for = True
        listening = asyncio.ensure_future(self._listen())
        try:
            await self._gone.wait()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        with suppress(Exception):  # a server that tells by an error
            while (await self._receive())["type"] != "http.disconnect":
                pass
        self.leave()
