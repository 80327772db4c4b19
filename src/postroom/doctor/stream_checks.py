"""Looks at the stream of an outbox that uses CDC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.doctor.surroundings import NotChecked
from postroom.rules.checks import stream
from postroom.rules.checks.stream import SlotFacts, StreamFacts
from postroom.rules.stream.modes import Mode

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding

PATIENCE = 0.3
"""The share of a check's time that the reader gets to come past what is committed now."""
POLL = 0.05


def server(at: Surroundings) -> Finding:
    """The server, the role and the way to it."""
    return stream.server(_facts(at))


def publication(at: Surroundings) -> Finding:
    """What the log shows."""
    return stream.publication(_facts(at))


def slot(at: Surroundings) -> Finding:
    """Whether the slot is there, and is read."""
    return stream.slot(_facts(at))


def held(at: Surroundings) -> Finding:
    """What the server keeps for the slot."""
    return stream.held(_facts(at))


def reader(at: Surroundings) -> Finding:
    """Whether a relay reads."""
    return stream.reader(_facts(at))


def mode(at: Surroundings) -> Finding:
    """The way back to the table."""
    return stream.mode(_facts(at))


def passed_by(at: Surroundings) -> Finding:
    """Messages that the reader has missed."""
    from postroom.store.admin.inspection.streams import Streams
    from postroom.store.stream.stream_status import StreamStatusReader

    found, streams = _facts(at), Streams(at.names)
    left, looked_at, place = at.read(streams.open_ones())
    read_past = False
    ends = time.monotonic() + PATIENCE * at.limit
    while left and found.slot is not None and found.reader and not read_past and time.monotonic() < ends:
        read_past = at.read(StreamStatusReader(at.names).confirmed(found.slot_name)) >= place
        left = at.read(streams.still_open(left))
        if left and not read_past:
            time.sleep(POLL)
    return stream.passed_by(found, list(left.values()), looked_at, read_past=read_past)


def producers(at: Surroundings) -> Finding:
    """Producers that write deliveries beside the stream."""
    from postroom.store.admin.inspection.streams import Streams

    found = _facts(at)
    if found.mode is not Mode.STREAM:
        return stream.producers(found, (), 0)
    topics, looked_at = at.read(Streams(at.names).past_the_stream(found.mode_seconds))
    return stream.producers(found, topics, looked_at)


def _facts(at: Surroundings) -> StreamFacts:
    if at.dialect != "postgresql":
        raise NotChecked("only PostgreSQL has a write-ahead log that relays can read")
    return at.once("stream", lambda: _look(at))


def _look(at: Surroundings) -> StreamFacts:
    from postroom.store.connections.pooled import is_direct
    from postroom.store.stream.stream_status import StreamStatusReader

    told = at.read(StreamStatusReader(at.names).status())
    direct = at.call(lambda connection, _names: is_direct(connection.connection.dbapi_connection))
    there = told.slot
    return StreamFacts(
        wanted=at.settings.cdc,
        mode=told.mode,
        mode_seconds=told.mode_seconds,
        reader=told.reader,
        slot_name=told.slot_name,
        slot=None
        if there is None
        else SlotFacts(there.name, there.active_pid is not None, there.wal_status, there.held_bytes),
        most_held_bytes=told.most_held_bytes,
        publication=told.publication,
        has_publication=told.has_publication,
        is_published=told.is_published,
        wal_level=told.server.wal_level,
        version=told.server.version // 10_000,
        may_replicate=told.may_replicate,
        pooled=not direct,
        is_of_debezium=told.is_of_debezium,
        takes_any_standby=told.server.takes_any_standby,
        unconfirmed_seconds=told.unconfirmed_seconds,
    )
