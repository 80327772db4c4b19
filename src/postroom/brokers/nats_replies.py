"""Replies on a publisher's inbox: parse them by the lengths that the server states, and turn them into outcomes.

Every subscriber of a subject sees the publisher's inbox and may reply to it. So a reply may hold any bytes, and only
one that names the stream and the sequence of the message is JetStream's acknowledgement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from nats.protocol.parser import AWAITING_CONTROL_LINE, MAX_CONTROL_LINE_SIZE, Parser

from postroom.brokers.port import Accepted, Outcome, Refused, TargetUnavailable
from postroom.rules.failures import Failure, Reason

if TYPE_CHECKING:
    from nats.aio.client import Client

END = b"\r\n"
NO_RESPONDERS = b"NATS/1.0 503"
UNAVAILABLE = 503
FIRST_ERROR_CODE = 10_000
TOO_LARGE = frozenset({10_054, 10_097})
"""More bytes than the stream takes; more bytes of headers than JetStream takes."""
NOT_THE_EXPECTED_STREAM = 10_060
_PLACE = re.compile(rb"(\d{1,9})\.(\d{1,9})")
"""The numbers of a batch and of a message in it, at the end of an inbox's subjects."""
LONGEST_NAME = 255


Replied = Callable[[int, int, bytes, bytes], None]
"""Called for each reply with the numbers of its batch and message, its headers and its data."""


class _Client:
    """The client as its parser sees it, except that replies to the inbox are handed to us."""

    def __init__(self, client: Client, inbox: str, replied: Replied) -> None:
        self._client = client
        self._inbox = f"{inbox}.".encode()
        self._replied = replied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> None:
        if not subject.startswith(self._inbox):
            await self._client._process_msg(sid, subject, reply, data, headers)  # noqa: SLF001 - the parser calls it so
        elif found := _PLACE.fullmatch(subject, len(self._inbox)):
            self._replied(int(found[1]), int(found[2]), headers or b"", data)


class ReplyParser(Parser):
    """The client's parser, except that replies to one inbox are parsed in runs and by their lengths."""

    def __init__(self, client: Client, inbox: str, replied: Replied) -> None:
        super().__init__(_Client(client, inbox, replied))
        place = re.escape(f"{inbox}.".encode()) + _PLACE.pattern + rb" \S+ (?:\S+ )?"
        self._plain = re.compile(rb"MSG " + place + rb"()(\d{1,9})\r\n").match
        self._headed = re.compile(rb"HMSG " + place + rb"(\d{1,9}) (\d{1,9})\r\n").match
        self._beginnings = (f"MSG {inbox}.".encode(), f"HMSG {inbox}.".encode())
        self._replied = replied
        self._awaited = 0
        """Bytes of a reply that has not arrived in full."""

    async def parse(self, data: bytes = b"") -> None:
        """Parse what has arrived."""
        if self.state != AWAITING_CONTROL_LINE:
            await super().parse(data)
            return
        self.buf += data
        if len(self.buf) < self._awaited:
            return
        arrived = bytes(self.buf)
        self.buf.clear()
        rest = arrived[self._take(arrived) :]
        if self._awaited:
            self.buf += rest
        else:
            await super().parse(rest)

    def _take(self, data: bytes) -> int:
        """Hand over all replies at the start. Returns where they end, and notes how much of the next one is missing."""
        start, here = 0, len(data)
        while found := self._plain(data, start) or self._headed(data, start):
            batch, number, headers, size = found.groups()
            body = found.end()
            end = body + int(size)
            if here < end + len(END):
                self._awaited = end + len(END) - start
                return start
            split = body + int(headers or 0)
            self._replied(int(batch), int(number), data[body:split], data[split:end])
            start = end + len(END)
        cut = data.startswith(self._beginnings, start) and data.find(END, start, start + MAX_CONTROL_LINE_SIZE) < 0
        self._awaited = min(here - start, MAX_CONTROL_LINE_SIZE) + 1 if cut else 0
        return start


class _Error(msgspec.Struct):
    code: int
    err_code: int
    description: str = ""


class _Acknowledgement(msgspec.Struct, gc=False):
    stream: str = ""
    seq: int = 0
    error: _Error | None = None


_acknowledgement = msgspec.json.Decoder(_Acknowledgement).decode


def outcome_of(data: bytes, expected: str | None = None) -> Outcome | None:
    """The outcome of a message; None if it is not JetStream that replies, or not the expected stream."""
    try:
        found = _acknowledgement(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    if found.error is not None:
        return _refusal(found.error, expected)
    if found.seq < 1 or (found.stream != expected if expected else not _is_stream(found.stream)):
        return None
    return Accepted(f"{found.stream}:{found.seq}")


def _is_stream(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _refusal(error: _Error, expected: str | None) -> Outcome | None:
    if error.err_code < FIRST_ERROR_CODE:
        return None  # JetStream numbers its errors
    if error.err_code in TOO_LARGE:
        return Refused(Reason.MESSAGE_TOO_LARGE, error.description, Failure.PERMANENT)
    if error.err_code == NOT_THE_EXPECTED_STREAM:
        return TargetUnavailable(f"the subject belongs to a stream other than {expected}, which the URL names")
    if error.code == UNAVAILABLE:
        return TargetUnavailable(error.description)
    return Refused(f"NATS_{error.err_code}", error.description)
