"""Messages that are in the write-ahead log alone: how they are written there, read, and recorded if they are not sent.

They have no row, so no position. In a relay they have one below zero, made of their place in the log.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from postroom.errors import UnusableConnection
from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.rules.stream.modes import STREAM, Mode
from postroom.rules.stream.stream_rows import StreamRow
from postroom.store.outbox.parking import Parking
from postroom.store.outbox.postgresql.given import texts
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.operations import DEFAULT_QUEUE, Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message
    from postroom.store.outbox.parking import Failed
    from postroom.store.sql.names import Names

LOWEST = -(2**63)


class Logged(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the log holds of a message."""

    id: UUID
    topic: str
    payload: bytes | None
    content_type: str
    type: str | None
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    headers: dict[str, str]
    digest: str | None
    created_at: datetime


_decoder = msgspec.msgpack.Decoder(Logged)
_encoder = msgspec.msgpack.Encoder()


def prefix_of(names: Names) -> str:
    """What the messages of this outbox begin with in the log."""
    return f"postroom:{names.schema}.{names.bare('outbox')}"


def encoded(message: Message, now: datetime) -> bytes:
    """A message as the log holds it."""
    return _encoder.encode(
        Logged(
            message.id,
            message.topic,
            message.payload,
            message.content_type,
            message.type,
            message.key,
            message.aggregate_type,
            message.aggregate_id,
            dict(message.headers),
            message.digest,
            now,
        )
    )


def row_of(place: int, content: bytes) -> StreamRow:
    """A message of the log as the stream shows others. Raises `msgspec.MsgspecError` for what is none."""
    one = _decoder.decode(content)
    position = LOWEST + place
    hashed = None if one.key is None else key_hash(one.key)
    headers = msgspec.json.encode(one.headers).decode() if one.headers else None
    # fmt: off
    columns = (
        position, 0, 0, 0, 0, False, one.id, one.topic, one.payload, one.content_type, one.type, one.key,
        one.aggregate_type, one.aggregate_id, headers, None, one.digest, None, one.created_at,
    )
    # fmt: on
    lane = NO_LANE if hashed is None else lane_of(hashed)
    return StreamRow(position, lane, hashed, len(one.payload or b""), DEFAULT_QUEUE, columns)


class UnsentOfLog(NamedTuple):
    """A message that is in the log alone, and was not sent."""

    queue: str
    message: Message
    failure: Failed | None


class LogWriter:
    """Writes messages into the log, in the caller's transaction."""

    def __init__(self, names: Names) -> None:
        self._prefix = prefix_of(names)
        self._statement = f"""
            WITH stream AS MATERIALIZED (
                SELECT 1 FROM {names.mapping()["stream"]} WHERE name = '{STREAM}' AND mode = '{Mode.STREAM}'
            )
            SELECT count(pg_logical_emit_message(true, :prefix::text, content))
            FROM unnest(:contents::bytea[]) AS content, stream"""

    def write(self, contents: Sequence[bytes]) -> Steps[None]:
        """Write them, in order. Raises `UnusableConnection` where nobody would read them: then none is written."""
        if not contents:
            return
        found = yield Query(self._statement, {"prefix": self._prefix, "contents": list(contents)})
        if found.rows[0][0] != len(contents):
            raise UnusableConnection(
                "nobody reads the write-ahead log of this outbox: start `postroom relay --cdc` first"
            )


class LogRecords(Operations):
    """Records what the log alone holds, once it was not sent."""

    def there(self, ids: Sequence[UUID]) -> Steps[set[UUID]]:
        """Those that were recorded before."""
        if not ids:
            return set()
        found = yield Query(
            f"SELECT id::text FROM {self.outbox} WHERE id = ANY(:ids::text::uuid[])", {"ids": texts(ids)}
        )
        return {UUID(one) for [one] in found.rows}

    def park(self, unsent: Sequence[UnsentOfLog]) -> Steps[None]:
        """Give messages rows and deliveries, in order, in the caller's transaction; except those that have them."""
        there = yield from self.there([one.message.id for one in unsent])
        by_queue: dict[str, list[UnsentOfLog]] = {}
        for one in unsent:
            if one.message.id not in there:
                by_queue.setdefault(one.queue, []).append(one)
        for queue, some in by_queue.items():
            yield from WRITERS[self.names.dialect](self.names, queue).add([one.message for one in some])
            for _, message, failure in some:
                if failure is not None:
                    yield from Parking(self.names, queue).fail(message, failure)
