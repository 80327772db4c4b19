"""How an outbox's stream stands: its mode, who reads it, and what the server says about publication and slot."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.rules.stream.modes import STREAM, Mode
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.slots import Server, Slot, Slots

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """All that there is to know about a stream without reading it."""

    mode: Mode
    mode_seconds: float
    """For how long the mode has been this one."""
    reader: str
    """The relay that reads; empty if none does."""
    slot_name: str
    """What the slot is called, whether it is there or not."""
    slot: Slot | None
    behind_bytes: int
    """Write-ahead log that the reader has not confirmed yet."""
    most_held_bytes: int | None
    """The server's ``max_slot_wal_keep_size``: beyond it, the slot is lost. None: it keeps all."""
    publication: str
    has_publication: bool
    is_published: bool
    """Whether the publication shows what the stream needs, of the table that the outbox is now."""
    server: Server
    may_replicate: bool
    """Whether the connection's user may make, read and drop slots."""
    is_of_debezium: bool = False
    """Debezium reads the outbox, or has to send what it was given."""
    unconfirmed_seconds: float = 0.0
    """How long ago that was added which a cleanup has found, and Debezium has not confirmed yet; 0 if there is none."""


class StreamStatusReader(Operations):
    """Reads it, in a few short statements."""

    def status(self) -> Steps[StreamStatus]:
        """How the stream stands now. PostgreSQL only."""
        slots = Slots(self.names)
        mode, seconds, reader, read_last = yield from self._row()
        server = yield from slots.server()
        name = slots.slot_of(server)
        is_of_debezium = mode is Mode.DEBEZIUM or (mode.lanes_rest and read_last not in {"", name})
        if is_of_debezium:
            name = read_last
        slot = yield from slots.slot(name)
        is_published = yield from slots.is_published()
        there = yield Query("SELECT 1 FROM pg_publication WHERE pubname = :name", {"name": slots.publication})
        behind = 0
        if slot is not None and not server.in_recovery:
            behind = max(0, (yield from slots.end_of_wal()) - slot.confirmed)
        return StreamStatus(
            mode=mode,
            mode_seconds=seconds,
            reader=reader,
            slot_name=name,
            slot=slot,
            behind_bytes=behind,
            most_held_bytes=(yield from self._most_held()),
            publication=slots.publication,
            has_publication=bool(there.rows),
            is_published=is_published,
            server=server,
            may_replicate=(yield from slots.may_replicate()),
            is_of_debezium=is_of_debezium,
            unconfirmed_seconds=(yield from self._unconfirmed(slot.confirmed)) if is_of_debezium and slot else 0.0,
        )

    def confirmed(self, slot: str) -> Steps[int]:
        """The place before which everything was sent or is on record; 0 if the slot is gone."""
        found = yield from Slots(self.names).slot(slot)
        return found.confirmed if found is not None else 0

    def _unconfirmed(self, confirmed: int) -> Steps[float]:
        found = yield Query(
            f"SELECT {self.dialect.seconds_since('m.created_at')} FROM {self.tables['stream']} s "
            f"JOIN {self.outbox} m ON m.position = s.marked WHERE s.name = '{STREAM}' AND s.done > :confirmed",
            {"confirmed": confirmed},
        )
        return max(0.0, float(found.rows[0][0])) if found.rows else 0.0

    def _row(self) -> Steps[tuple[Mode, float, str, str]]:
        found = yield Query(
            f"SELECT mode, {self.dialect.seconds_since('changed_at')}, "
            f"CASE WHEN leased_until > {self.now} THEN owner ELSE '' END, slot "
            f"FROM {self.tables['stream']} WHERE name = '{STREAM}'"
        )
        if not found.rows:
            return Mode.TABLE, 0.0, "", ""
        [(mode, seconds, reader, slot)] = found.rows
        return Mode(mode), max(0.0, float(seconds)), str(reader), str(slot)

    def _most_held(self) -> Steps[int | None]:
        found = yield Query("SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'")
        megabytes = int(found.rows[0][0]) if found.rows else -1
        return megabytes * MEGABYTE if megabytes >= 0 else None
