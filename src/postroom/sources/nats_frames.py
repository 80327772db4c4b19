"""Frames from NATS as raw bytes: the client library stops reading at anything that it cannot decode."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from nats.aio.client import Client
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from postroom.sources.reading import text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VERSION = "NATS/1.0"
BLANK = " \t\n\r\x0b\x0c"
"""What may surround names and values: other characters that Python takes for blank belong to them."""
CRLF = b"\r\n"
_BEGINNING = re.compile(rb"HMSG (\S+) (\d+) (\S+) (\d+) (\d+)\r\n|MSG (\S+) (\d+) (\S+) (\d+)\r\n")
"""Subject, subscription, reply subject, and the lengths of the headers and of all, of a frame with a reply subject."""


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
        self._ps = FrameParser(self, self._takers)

    async def take(self, subject: str, taker: Callable[[Frame], None]) -> None:
        """Call `taker` with everything that comes to this subject."""
        subscription: Any = await self.subscribe(subject)
        self._takers[subscription._id] = taker  # noqa: SLF001 - frames carry its number

    async def publish_to_each(self, subjects: Sequence[str], payload: bytes) -> None:
        """Publish the same to several subjects, with one write."""
        *others, last = subjects
        if others:
            end = f"  {len(payload)}\r\n{payload.decode()}\r\n"
            await self._send_command("".join(f"PUB {subject}{end}" for subject in others).encode())
        await self.publish(last, payload)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        taker = self._takers.get(sid)
        if taker is not None:
            taker(Frame(bytes(subject), bytes(reply), bytes(data), bytes(headers or b"")))
            return
        with contextlib.suppress(ValueError, LookupError):  # a reply that nobody waits for
            await super()._process_msg(sid, subject, reply, data, headers)


class FrameParser(Parser):
    """Hands over frames that are wanted and have arrived as a whole. All else is left to the client's own parser."""

    def __init__(self, client: Client, takers: Mapping[int, Callable[[Frame], None]]) -> None:
        super().__init__(client)
        self._takers = takers

    async def parse(self, data: bytes = b"") -> None:
        """Parse what has arrived; the client's own parser keeps a frame of which some is missing."""
        if self.state == AWAITING_MSG_PAYLOAD:
            missing = self.needed + len(CRLF) - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        if data:
            await super().parse(data[self._handed_over(data) :])

    def _handed_over(self, data: bytes) -> int:
        """Hand over the frames that the data begins with; returns where they end."""
        end = 0
        while found := _BEGINNING.match(data, end):
            subject, number, reply, head, length = found.groups()[:5]
            if subject is None:
                (subject, number, reply, length), head = found.groups()[5:], 0
            taker, start = self._takers.get(int(number)), found.end()
            body, stop = start + int(head), start + int(length)
            if taker is None or stop + len(CRLF) > len(data):
                break
            taker(Frame(subject, reply, data[body:stop], data[start:body]))
            end = stop + len(CRLF)
        return end


def head_of(raw: bytes) -> Head:
    """Parse status and headers. Raises `ValueError` if they are malformed."""
    if not raw:
        return Head("", "", {})
    first, *lines = text(raw).split("\r\n")
    if not first.startswith(VERSION):
        raise ValueError(f"its headers do not begin with {VERSION}")
    status, _, description = first[len(VERSION) :].strip(BLANK).partition(" ")
    headers = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        name = name.strip(BLANK)
        if not colon or not name:
            raise ValueError("one of its headers has no name")
        if not name.isascii():
            name.encode()  # raises if it is not UTF-8
        headers[name] = value.strip(BLANK)
    return Head(status, description, headers)
