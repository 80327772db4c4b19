"""Frames from NATS as raw bytes: the client library stops reading at anything that it cannot decode."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.aio.client import Client

from postroom.sources.reading import text

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION = b"NATS/1.0"


class Frame(NamedTuple):
    """A message as received."""

    subject: bytes
    reply: bytes
    body: bytes
    head: bytes


class Head(NamedTuple):
    """The part of a message before its body."""

    status: str
    description: str
    headers: dict[str, str]


class RawClient(Client):
    """A client that hands over what arrives for a subscription without decoding it."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, Callable[[Frame], None]] = {}

    async def take(self, subject: str, taker: Callable[[Frame], None]) -> None:
        """Call `taker` with everything that comes to this subject."""
        subscription: Any = await self.subscribe(subject)
        self._takers[subscription._id] = taker  # noqa: SLF001 - frames carry its number

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        taker = self._takers.get(sid)
        if taker is not None:
            taker(Frame(bytes(subject), bytes(reply), bytes(data), bytes(headers or b"")))
            return
        with contextlib.suppress(ValueError, LookupError):  # a reply that nobody waits for
            await super()._process_msg(sid, subject, reply, data, headers)


def head_of(raw: bytes) -> Head:
    """Parse status and headers. Raises `ValueError` if they are malformed."""
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
