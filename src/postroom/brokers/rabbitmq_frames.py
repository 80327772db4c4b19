"""The frames of a published message in AMQP 0-9-1. Whatever messages of one kind share is encoded only once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pamqp import commands, frame

from postroom.brokers.header_formats import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.brokers.cloudevents import Header

PUBLISHING = 1
"""The channel for publishing."""
_HEADER, _BODY, _END = 2, 3, b"\xce"
_BASIC = commands.Basic.frame_id
_PERSISTENT = b"\2"
_HAS_CONTENT_TYPE, _HAS_HEADERS, _HAS_DELIVERY_MODE, _HAS_MESSAGE_ID = 1 << 15, 1 << 13, 1 << 12, 1 << 7
_head = struct.Struct(">BHI").pack
"""A frame's type, channel and size."""
_content = struct.Struct(">HHQH").pack
"""The class of the content, nothing, the body's size, and which properties follow."""
_CONTENT_SIZE = 14
_size = struct.Struct(">I").pack


class Outgoing(NamedTuple):
    """A message, encoded except for its payload; `number` is its place in the batch."""

    number: int
    id: str
    topic: str
    publish: bytes
    content: bytes
    payload: bytes

    def frames(self, frame_max: int) -> Iterable[bytes]:
        """All frames of the message, in pieces."""
        yield self.publish
        yield self.content
        most = frame_max - len(_head(_BODY, PUBLISHING, 0)) - len(_END)
        for start in range(0, len(self.payload), most):
            part = self.payload[start : start + most]  # no copy if it is the whole
            yield _head(_BODY, PUBLISHING, len(part))
            yield part
            yield _END


class _Publish(commands.Basic.Publish):
    def validate(self) -> None:
        """Leave validation to the server, which allows more names than the library does."""


class CommonFrames:
    """What the frames of messages with the same exchange, topic and common headers share."""

    def __init__(self, exchange: str, topic: str, headers: dict[str, str]) -> None:
        kind = headers.pop(CONTENT_TYPE, None)
        self.publish = frame.marshal(_Publish(0, exchange, topic, mandatory=True), PUBLISHING)
        self._content_type = _short(kind.encode()) if kind else b""
        self._headers = _table(headers.items())
        self._flags = _HAS_HEADERS | _HAS_DELIVERY_MODE | _HAS_MESSAGE_ID | (_HAS_CONTENT_TYPE if kind else 0)

    def content(self, name: str, own: Iterable[Header], size: int) -> bytes:
        """The frame with the properties of a message: its id is `name`, its payload has `size` bytes."""
        headers = self._headers + _table(own)
        properties = b"%b%b%b%b%b" % (
            self._content_type,
            _size(len(headers)),
            headers,
            _PERSISTENT,
            _short(name.encode()),
        )
        return b"%b%b%b%b" % (
            _head(_HEADER, PUBLISHING, _CONTENT_SIZE + len(properties)),
            _content(_BASIC, 0, size, self._flags),
            properties,
            _END,
        )


def _table(headers: Iterable[Header]) -> bytes:
    """Entries of a table of texts. A name of more than 255 bytes raises an error."""
    found = []
    for name, value in headers:
        text = value.encode()
        found.append(b"%bS%b%b" % (_short(name.encode()), _size(len(text)), text))
    return b"".join(found)


def _short(text: bytes) -> bytes:
    return b"%c%b" % (len(text), text)
