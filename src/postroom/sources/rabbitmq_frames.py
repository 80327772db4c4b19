"""Frames from RabbitMQ, even with invalid text: the server passes on what senders gave it, unchecked."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pamqp import commands, constants, frame

from postroom.sources.reading import text

HEAD = constants.FRAME_HEADER_SIZE
_DELIVER = commands.Basic.Deliver.index


class Start(NamedTuple):
    """The start of a delivery."""

    tag: int
    routing_key: str
    problem: str | None = None
    """Why the routing key is not text."""


class Properties(NamedTuple):
    """A message's size and properties; or the bytes of the frame that could not be read, and why."""

    size: int
    known: Any
    raw: bytes = b""
    problem: str | None = None


def unmarshal(raw: bytes) -> tuple[int, Any]:
    """Channel and content of a frame. Raises the library's error if the sender is not at fault."""
    try:
        _, channel, found = frame.unmarshal(raw)
    except Exception as error:
        unread = _unread(raw, f"it cannot be read: {error}")
        if unread is None:
            raise
        return int.from_bytes(raw[1:3]), unread
    return channel, found


def _unread(raw: bytes, problem: str) -> Start | Properties | None:
    content = raw[HEAD:-1]
    match raw[0]:
        case constants.FRAME_HEADER:
            [size] = struct.unpack_from(">Q", content, 4)
            return Properties(size, None, content[12:], problem)
        case constants.FRAME_METHOD if int.from_bytes(content[:4]) == _DELIVER:
            return _start(content[4:], problem)
    return None


def _start(content: bytes, problem: str) -> Start:
    """Parse consumer tag, delivery tag, redelivered flag, exchange and routing key."""
    _, rest = _short(content)
    [tag] = struct.unpack_from(">Q", rest)
    _, rest = _short(rest[9:])
    return Start(tag, text(_short(rest)[0]), problem)


def _short(content: bytes) -> tuple[bytes, bytes]:
    end = 1 + content[0]
    return content[1:end], content[end:]
