"""PostgreSQL's logical replication, decoded: what comes in a copy, and the rows of messages in it (protocol 1, binary).

Only what the stream asks for is understood: inserts into one table, in whole transactions.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from postroom.rules.ordering import NO_LANE, key_hash, lane_of

if TYPE_CHECKING:
    from collections.abc import Callable

_XLOG, _KEEPALIVE = b"wk"
_BEGIN, _COMMIT, _RELATION, _INSERT, _MESSAGE = b"BCRIM"
_NULL = ord("n")
_START = 25
"""Where the change begins, behind what every piece of the log has."""
MOST_KEYS = 65_536
"""Keys whose hash is remembered."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECONDS_SINCE_1970 = 946_684_800_000_000
_two_places = struct.Struct(">QQ")
_place_and_clock = struct.Struct(">Qq")
_length = struct.Struct(">i").unpack_from
_whole = struct.Struct(">q").unpack


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


@dataclass(slots=True)
class StreamRow:
    """A message as the stream shows it."""

    position: int
    lane: int
    key_hash: int | None
    size: int
    queue: str
    columns: tuple[Any, ...]
    """As a statement returns a delivery with its message: see `postroom.store.sql.rows.Reader`."""


class Relation(NamedTuple):
    """The table's columns, in the order in which rows have them."""

    columns: tuple[str, ...]


class LogMessage(NamedTuple):
    """What a transaction wrote into the log alone, for whoever reads it."""

    place: int
    prefix: str
    content: bytes


Change = Begin | Commit | Keepalive | StreamRow | Relation | LogMessage
_NAMES = (
    *("position", "id", "queue", "topic", "type", "aggregate_type", "aggregate_id", "ordering_key", "payload"),
    *("content_type", "headers", "idempotency_key", "digest", "created_at", "expires_at"),
)


_AS_CREATED = tuple(range(len(_NAMES)))
"""The order of columns in tables that were not made by hand."""


class Decoder:
    """Decodes what one connection receives. A table's columns come before its first row."""

    def __init__(self, id_of: Callable[[bytes], UUID] = lambda data: UUID(bytes=data)) -> None:
        """`id_of` makes the id of its bytes: drivers have quicker ways."""
        self._id_of = id_of
        self._order: tuple[int, ...] | None = None

    def decode(self, data: bytes) -> Change | None:
        """One piece of the copy; None for what says nothing to us. Raises `NotUnderstood`."""
        if data[0] == _XLOG:
            kind = data[_START]
            if kind == _INSERT:
                return self._row(data)
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
        missing = {*_NAMES} - {*columns}
        if missing:
            raise NotUnderstood(f"the publication lacks {', '.join(sorted(missing))}")
        self._order = tuple(columns.index(name) for name in _NAMES)
        return Relation(tuple(columns))

    def _row(self, data: bytes) -> StreamRow:
        values = _values(data)
        order = self._order
        if order is None:
            raise NotUnderstood("a row before its table")
        if order != _AS_CREATED:
            values = [values[n] for n in order]
        # fmt: off
        (
            position_, id_, queue, topic, kind, aggregate_type, aggregate_id, key_, payload, content_type, headers_,
            idempotency_key, digest, created_at, expires_at,
        ) = values
        # fmt: on
        position = _whole(position_ or b"")[0]
        size = 0 if payload is None else len(payload)
        headers = None
        key, hashed, lane = (None, None, NO_LANE) if key_ is None else _keyed(key_)
        if headers_ is not None:
            headers = headers_[1:].decode()  # behind the version of the format
            size += len(headers_) - 1
        # fmt: off
        return StreamRow(
            position, lane, hashed, size, (queue and queue.decode()) or "",
            (
                position, 0, 0, 0, 0, False, self._id_of(id_ or b""), topic and topic.decode(),
                payload, content_type and content_type.decode(), kind and kind.decode(), key,
                aggregate_type and aggregate_type.decode(), aggregate_id and aggregate_id.decode(), headers,
                idempotency_key and idempotency_key.decode(), digest and digest.decode(),
                expires_at and _moment(expires_at), created_at and _moment(created_at),
            ),
        )
        # fmt: on


def _message(data: bytes) -> LogMessage | None:
    """A message of the log; None if it does not belong to a transaction, and so may not have happened."""
    at = _START + 10
    end = data.index(0, at)
    if not data[_START + 1] & 1:
        return None
    return LogMessage(int.from_bytes(data[_START + 2 : at], "big"), data[at:end].decode(), data[end + 5 :])


@lru_cache(maxsize=MOST_KEYS)
def _keyed(data: bytes) -> tuple[str, int, int]:
    """A key, its hash and its lane."""
    key = data.decode()
    hashed = key_hash(key)
    return key, hashed, lane_of(hashed)


def _values(data: bytes) -> list[bytes | None]:
    """The values of a row, in the order of its table's columns."""
    values: list[bytes | None] = []
    add, length = values.append, _length
    at = _START + 8
    for _ in range(data[at - 1]):
        if data[at] == _NULL:
            add(None)
            at += 1
        else:
            start = at + 5
            at = start + length(data, at + 1)[0]
            add(data[start:at])
    return values


def _moment(value: bytes) -> datetime | None:
    """A moment; None for one that Python cannot represent, which never comes."""
    try:
        return _EPOCH + timedelta(microseconds=_whole(value)[0])
    except OverflowError:
        return None


def acknowledgement(place: int, clock: float, *, reply: bool = False) -> bytes:
    """What tells the server that nothing before this place is needed any more; it may be asked to reply at once."""
    return struct.pack(">cQQQqB", b"r", place, place, place, int(clock * 1e6) - _MICROSECONDS_SINCE_1970, reply)
