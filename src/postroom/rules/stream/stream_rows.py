"""Rows of messages as PostgreSQL's logical replication writes them (binary), decoded.

This is most of a relay's work for a message. So what rows have in common is decoded once: names and content types are
recognised as a whole by the bytes that stand for them, and what has a fixed length is read in one go.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.ordering import NO_LANE, key_hash, lane_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

COLUMNS = (
    *("position", "id", "queue", "topic", "type", "aggregate_type", "aggregate_id", "ordering_key", "payload"),
    *("content_type", "headers", "idempotency_key", "digest", "created_at", "expires_at"),
)
"""In the order in which tables have them that were not made by hand."""
MOST_KEYS = 65_536
"""Keys whose hash is remembered."""
MOST_NAMES = 1000
"""Combinations of names that are remembered."""

_NULL = ord("n")
_AHEAD = 5
"""Bytes before a value: its kind, and its length."""
_FIRST = 33
"""Where the first column begins, behind what every row has."""
_POSITION = _FIRST + _AHEAD
_NAMES = _POSITION + 8 + _AHEAD + 16
"""Where queue, topic, type and the aggregate's type begin: position and id are always there."""
_USUAL_DIGEST = b"b\0\0\0\x40"
"""What stands before a digest."""
_USUAL_END = _AHEAD + 64 + _AHEAD + 8 + 1
"""Bytes of a digest, the time of creation, and no expiry."""
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_position_and_id = struct.Struct(">q5x16s").unpack_from
_digest_and_clock = struct.Struct(">5x64s5xq").unpack_from
_length = struct.Struct(">i").unpack_from
_whole = struct.Struct(">q").unpack


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


class _Names(NamedTuple):
    """The names of a row, and the bytes that stand for them: they end by themselves, so no others begin so."""

    written: bytes
    read: Sequence[str | None]


class RowDecoder:
    """Decodes the rows of one table."""

    def __init__(self, columns: Sequence[str], id_of: Callable[[bytes], UUID]) -> None:
        """`columns` are the table's, in the order in which its rows have them."""
        order = tuple(columns.index(name) for name in COLUMNS)
        self._order = None if order == tuple(range(len(columns))) else order
        self._id_of = id_of
        self._names = _Names(b"\0", ())
        self._known: dict[bytes, _Names] = {}
        self._content_type: tuple[bytes, str | None] = b"\0", None

    def decode(self, data: bytes) -> StreamRow:  # noqa: PLR0912, PLR0915 - written out, see below
        """One row, with what stands before it."""
        if self._order is not None:
            columns = _written(data)
            data = data[:_FIRST] + b"".join([columns[n] for n in self._order])
        position, id_ = _position_and_id(data, _POSITION)
        written, names = self._names
        if not data.startswith(written, _NAMES):
            written, names = self._names = self._names_of(data)
        queue, topic, kind, aggregate_type = names
        at = _NAMES + len(written)
        aggregate_id = key = hashed = payload = headers = idempotency_key = None
        lane, size = NO_LANE, 0
        # One column after another, written out: a loop or a call for each would take as long again.
        if data[at] == _NULL:
            at += 1
        else:
            start = at + _AHEAD
            at = start + _length(data, at + 1)[0]
            aggregate_id = data[start:at].decode()
        if data[at] == _NULL:
            at += 1
        else:
            start = at + _AHEAD
            at = start + _length(data, at + 1)[0]
            key, hashed, lane = _keyed(data[start:at])
        if data[at] == _NULL:
            at += 1
        else:
            start = at + _AHEAD
            size = _length(data, at + 1)[0]
            at = start + size
            payload = data[start:at]
        written, content_type = self._content_type
        if not data.startswith(written, at):
            [content_type], end = _texts(data, at, 1)
            written = data[at:end]
            self._content_type = written, content_type
        at += len(written)
        if data[at] == _NULL:
            at += 1
        else:
            start = at + _AHEAD + 1  # behind the version of the format
            at = start - 1 + _length(data, at + 1)[0]
            size += at - start
            headers = data[start:at].decode()
        if data[at] == _NULL:
            at += 1
        else:
            start = at + _AHEAD
            at = start + _length(data, at + 1)[0]
            idempotency_key = data[start:at].decode()
        if len(data) - at == _USUAL_END and data.startswith(_USUAL_DIGEST, at):
            digest_, clock = _digest_and_clock(data, at)
            digest, created_at, expires_at = digest_.decode(), _moment(clock), None
        else:
            digest, created_at, expires_at = _end(data, at)
        # fmt: off
        return StreamRow(
            position, lane, hashed, size, queue or "",
            (
                position, 0, 0, 0, 0, False, self._id_of(id_), topic, payload, content_type, kind, key,
                aggregate_type, aggregate_id, headers, idempotency_key, digest, expires_at, created_at,
            ),
        )
        # fmt: on

    def _names_of(self, data: bytes) -> _Names:
        """The names of a row, if others came before it."""
        # Where the topic stands, if the queue's name has no more than 255 bytes: a guess, to look for what is known.
        topic = _NAMES + _AHEAD + data[_NAMES + 4]
        guess = data[topic : topic + _AHEAD + data[topic + 4]]
        names = self._known.get(guess)
        if names is None or not data.startswith(names.written, _NAMES):
            read, end = _texts(data, _NAMES, 4)
            names = _Names(data[_NAMES:end], read)
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            self._known[guess] = names
        return names


@lru_cache(maxsize=MOST_KEYS)
def _keyed(data: bytes) -> tuple[str, int, int]:
    """A key, its hash and its lane."""
    key = data.decode()
    hashed = key_hash(key)
    return key, hashed, lane_of(hashed)


def _end_of(data: bytes, at: int) -> int:
    """Where the column ends that begins here."""
    return at + 1 if data[at] == _NULL else at + _AHEAD + int(_length(data, at + 1)[0])


def _texts(data: bytes, at: int, count: int) -> tuple[list[str | None], int]:
    """Columns of text from here on, and where they end."""
    texts: list[str | None] = []
    for _ in range(count):
        end = _end_of(data, at)
        texts.append(None if data[at] == _NULL else data[at + _AHEAD : end].decode())
        at = end
    return texts, at


def _end(data: bytes, at: int) -> tuple[str | None, datetime | None, datetime | None]:
    """What a row ends with: digest, time of creation, expiry."""
    [digest], at = _texts(data, at, 1)
    moments = []
    for _ in range(2):
        end = _end_of(data, at)
        moments.append(None if data[at] == _NULL else _moment(_whole(data[at + _AHEAD : end])[0]))
        at = end
    created_at, expires_at = moments
    return digest, created_at, expires_at


def _written(data: bytes) -> list[bytes]:
    """The columns of a row as they are written, in the order of its table."""
    columns: list[bytes] = []
    at = _FIRST
    while at < len(data):
        end = _end_of(data, at)
        columns.append(data[at:end])
        at = end
    return columns


def _moment(clock: int) -> datetime | None:
    """A moment; None for one that Python cannot represent, which never comes."""
    try:
        return _EPOCH + timedelta(0, 0, clock)
    except OverflowError:
        return None
