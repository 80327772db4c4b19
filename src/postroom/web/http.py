"""What every ASGI application here needs: the body of a request, and sending a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.replay import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Scope = MutableMapping[str, Any]
    Event = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Event]]
    Send = Callable[[Event], Awaitable[None]]

_BODILESS = {204, 304}


class Body(NamedTuple):
    """What was read of a request's body."""

    content: bytes
    more: bool
    """The client sends more."""


async def read_body(receive: Receive, most: int) -> Body | None:
    """The body, or its beginning if it is longer than ``most``. None if the client has disconnected."""
    content, more = bytearray(), True
    while more and len(content) <= most:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        content += event.get("body", b"")
        more = event.get("more_body", False)
    return Body(bytes(content), more)


async def respond(send: Send, response: Response) -> None:
    """Send a whole response."""
    whole = sized(response)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in whole.headers]
    await send({"type": "http.response.start", "status": whole.status, "headers": headers})
    await send({"type": "http.response.body", "body": whole.body})


def sized(response: Response) -> Response:
    """The response with its length, if it may have one."""
    if response.status < 200 or response.status in _BODILESS:  # noqa: PLR2004 - 1xx, as HTTP has them
        return response
    return Response(response.status, (*response.headers, ("content-length", str(len(response.body)))), response.body)
