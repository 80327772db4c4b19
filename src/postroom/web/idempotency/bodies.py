"""The body of a keyed request in WSGI: read whole before the request runs, or refused."""

from __future__ import annotations

import io
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.web.idempotency.policy import Refused
from postroom.web.idempotency.problems import problem

if TYPE_CHECKING:
    from postroom.web.requests import Request

_CHUNK = 65536


class Read(NamedTuple):
    """What has come of a body."""

    body: bytes
    more: bool
    """It is larger than what is read of a keyed request: there may be a rest."""


class Replayed(io.RawIOBase):
    """What has been read, and then whatever else comes."""

    def __init__(self, read: Read, rest: Any) -> None:
        self._body = io.BytesIO(read.body)
        self._rest = rest

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As the standard library has it."""
        read = self._body.readinto(buffer)
        if not read:
            data = self._rest.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        return read


def read_body(request: Request, most: int) -> Read:
    """The body, or what has come of it when it was found to be too large.

    Raises `Refused` where the stream ends before the length that was announced: the client has gone, and what it sends
    next time is another body.
    """
    stream, announced = request.raw["wsgi.input"], announced_bytes(request)
    left = (most + 1 if request.raw.get("wsgi.input_terminated") else 0) if announced is None else announced
    body = bytearray()
    while left > 0 and len(body) <= most:
        part = _part(stream, min(left, _CHUNK))
        if not part:
            break
        body += part
        left -= len(part)
    read = Read(bytes(body), len(body) > most)
    if not read.more:
        refuse_cut_off(request, len(body))
    return read


def announced_bytes(request: Request) -> int | None:
    """The body's length, None where there was none to be told. Raises `Refused` where what was told is no length."""
    if request.header("content-length") and request.announced_bytes is None:
        raise incomplete("its Content-Length is not a length")
    return request.announced_bytes


def refuse_cut_off(request: Request, came: int) -> None:
    """Raise `Refused` where less has come than was announced."""
    if came < (announced_bytes(request) or 0):
        raise incomplete("less has come than was announced")


def incomplete(reason: str) -> Refused:
    """What is to be raised for a request of which a part is missing."""
    title = "The request did not come whole, and was not begun."
    return Refused(problem(HTTPStatus.BAD_REQUEST, "request-incomplete", title, detail=reason))


def _part(stream: Any, size: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError:  # as some servers tell that the client has gone
        raise incomplete("the connection was lost") from None
