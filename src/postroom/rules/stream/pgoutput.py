"""PostgreSQL's logical replication, decoded: what comes in a copy, and the rows of messages in it (protocol 1, binary).

Only what the stream asks for is understood: inserts into one table, in whole transactions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from postroom.rules.stream.stream_rows import COLUMNS, RowDecoder, StreamRow

if TYPE_CHECKING:
    from collections.abc import Callable

_XLOG, _KEEPALIVE = b"wk"
_BEGIN, _COMMIT, _RELATION, _INSERT, _MESSAGE = b"BCRIM"
_START = 25
"""Where the change begins, behind what every piece of the log has."""
_MICROSECONDS_SINCE_1970 = 946_684_800_000_000
_two_places = struct.Struct(">QQ")
_place_and_clock = struct.Struct(">Qq")


class NotUnderstood(Exception):
    """The server sent what was not asked for."""


class Begin(NamedTuple):
    """A transaction begins whose commit is at this place."""

    commit: int


class Commit(NamedTuple):
    """It ends: everything before this place was read."""

    end: int
    at: float
    """When it was committed, in seconds since 1970, by the server's clock."""


class Keepalive(NamedTuple):
    """Nothing for us up to this place."""

    end: int
    reply: bool
    """The server wants to hear from us, or it ends the connection."""


class Relation(NamedTuple):
    """The table's columns, in the order in which rows have them."""

    columns: tuple[str, ...]


class LogMessage(NamedTuple):
    """What a transaction wrote into the log alone, for whoever reads it."""

    place: int
    prefix: str
    content: bytes


Change = Begin | Commit | Keepalive | StreamRow | Relation | LogMessage


class Decoder:
    """Decodes what one connection receives. A table's columns come before its first row."""

    def __init__(self, id_of: Callable[[bytes], UUID] = lambda data: UUID(bytes=data)) -> None:
        """`id_of` makes the id of its bytes: drivers have quicker ways."""
        self._id_of = id_of
        self._rows: RowDecoder | None = None

    def decode(self, data: bytes) -> Change | None:
        """One piece of the copy; None for what says nothing to us. Raises `NotUnderstood`."""
        if data[0] == _XLOG:
            kind = data[_START]
            if kind == _INSERT:
                if self._rows is None:
                    raise NotUnderstood("a row before its table")
                return self._rows.decode(data)
            if kind == _BEGIN:
                return Begin(_two_places.unpack_from(data, _START + 1)[0])
            if kind == _COMMIT:
                end, clock = _place_and_clock.unpack_from(data, _START + 10)
                return Commit(end, (clock + _MICROSECONDS_SINCE_1970) / 1e6)
            if kind == _RELATION:
                return self._relation(data)
            return _message(data) if kind == _MESSAGE else None
        if data[0] == _KEEPALIVE:
            return Keepalive(int.from_bytes(data[1:9], "big"), data[17] == 1)
        raise NotUnderstood(f"a piece of kind {data[0]}")

    def _relation(self, data: bytes) -> Relation:
        at = _START + 5
        at = data.index(0, data.index(0, at) + 1) + 2  # behind schema, table, and replica identity
        count = int.from_bytes(data[at : at + 2], "big")
        at += 2
        columns: list[str] = []
        for _ in range(count):
            end = data.index(0, at + 1)
            columns.append(data[at + 1 : end].decode())
            at = end + 9
        missing = {*COLUMNS} - {*columns}
        if missing:
            raise NotUnderstood(f"the publication lacks {', '.join(sorted(missing))}")
        self._rows = RowDecoder(columns, self._id_of)
        return Relation(tuple(columns))


def _message(data: bytes) -> LogMessage | None:
    """A message of the log; None if it does not belong to a transaction, and so may not have happened."""
    at = _START + 10
    end = data.index(0, at)
    if not data[_START + 1] & 1:
        return None
    return LogMessage(int.from_bytes(data[_START + 2 : at], "big"), data[at:end].decode(), data[end + 5 :])


def acknowledgement(place: int, clock: float, *, reply: bool = False) -> bytes:
    """What tells the server that nothing before this place is needed any more; it may be asked to reply at once."""
    return struct.pack(">cQQQqB", b"r", place, place, place, int(clock * 1e6) - _MICROSECONDS_SINCE_1970, reply)
