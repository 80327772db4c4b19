"""What NATS delivers, byte by byte: the client library's own reading ends at what it cannot decode, and all with it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.aio.client import Client

from postroom.sources.reading import text

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = b"NATS/1.0"


class Frame(NamedTuple):
    """A message as it came."""

    subject: bytes
    reply: bytes
    body: bytes
    head: bytes


class Head(NamedTuple):
    """What is before a message's body."""

    status: str
    description: str
    headers: dict[str, str]


class RawClient(Client):
    """A client that hands over what comes for one subscription unread."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Callable[[Frame], None]] = {}

    async def take(self, subject: str, taker: Callable[[Frame], None]) -> None:
        """Have a function called with all that comes to this subject."""
        subscription: Any = await self.subscribe(subject)
        self._takers[subscription._id] = taker  # noqa: SLF001 - by its number what comes is told

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        taker = self._takers.get(sid)
        if taker is not None:
            taker(Frame(bytes(subject), bytes(reply), bytes(data), bytes(headers or b"")))
            return
        with contextlib.suppress(ValueError, LookupError):  # a stranger's answer, to which nobody listens
            await super()._process_msg(sid, subject, reply, data, headers)


def head_of(raw: bytes) -> Head:
    """Status and headers. Raises `ValueError` where they are not as they must be."""
    if not raw:
        return Head("", "", {})
    first, *lines = raw.split(b"\r\n")
    if not first.startswith(VERSION):
        raise ValueError(f"its headers do not begin with {VERSION.decode()}")
    status, _, description = text(first[len(VERSION) :]).strip().partition(" ")
    headers = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(b":")
        if not colon or not name.strip():
            raise ValueError("one of its headers has no name")
        headers[name.strip().decode()] = text(value.strip())
    return Head(status, description, headers)
