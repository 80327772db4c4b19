"""Debezium instead of a relay: the mode for it, and receipts for what it has sent.

Debezium says nothing about single messages, but its slot says up to which place of the log it has sent everything. So
we note a position, wait for the transactions that may still commit a lower one, note the place where the log is then,
and wait for the slot to be there: everything up to the position is sent. Then it gets receipts, as a relay writes them,
and cleanups, partitions and the way back to the table work as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.rules.stream.modes import STREAM, Mode
from postroom.store.admin.audit import DEBEZIUM_OFF, DEBEZIUM_ON, UNSIGNED, audit
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.leadership import Leadership
from postroom.store.stream.slots import LOST, PLACE, Slots
from postroom.store.stream.switching import FINISHED, Switching, counted

if TYPE_CHECKING:
    from postroom.store.admin.audit import Note
    from postroom.store.sql.names import Names

SLOT = "postroom_debezium"
"""The slot's name, as the guide's settings have it."""
ROWS = 5000
"""Receipts of one statement, on the way back to the table."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What was noted, in the row of the stream."""

    mode: Mode
    slot: str
    settled: int
    """Up to this position, everything that Debezium had to send has a receipt."""
    marked: int
    """The position that is to be settled next; 0 if there is none."""
    marked_before: int
    """Transactions with a lower number may still commit lower positions."""
    place: int
    """Where the log was when they had ended; 0 before that."""


class Debezium(Operations):
    """Puts the outbox into the mode for Debezium, and takes it back to the table."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.slots = Slots(names)
        self._leadership = Leadership(names)
        self._switching = Switching(names)
        self._older: set[str] | None = None

    def mark(self) -> Steps[Mark]:
        found = yield Query(
            f"SELECT mode, slot, settled, marked, marked_before, done FROM {self.tables['stream']} "
            f"WHERE name = '{STREAM}'"
        )
        if not found.rows:
            return Mark(Mode.TABLE, "", 0, 0, 0, 0)
        [(mode, *rest)] = found.rows
        return Mark(Mode(mode), *rest)

    def begin(self, slot: str, note: Note = UNSIGNED) -> Steps[Mode]:
        """Make publication and slot, unless they are there, and then have producers write for Debezium.

        In this order nothing is lost: the slot keeps what is written before Debezium is started. Returns the mode of
        the outbox now: if relays read the stream, nothing was changed.
        """
        mark = yield from self.mark()
        if mark.mode not in {Mode.TABLE, Mode.DEBEZIUM}:
            return mark.mode
        if not (yield from self.slots.is_published()):
            yield from self.slots.publish()
        if (yield from self.slots.slot(slot)) is None:
            server = yield from self.slots.server()
            yield from self.slots.create_slot(slot, server.version)
        yield from self.transaction(self._hand_over, slot, note)
        return (yield from self.mark()).mode

    def _hand_over(self, slot: str, note: Note) -> Steps[None]:
        if (yield from self.statement(f"UPDATE {self._set_mode(slot)} RETURNING 1", {})):
            yield from audit(self.names, DEBEZIUM_ON, note, [(None, None, {"slot": slot})])

    def statements(self, slot: str, version: int) -> list[str]:
        """The SQL of `begin`, for somebody who may run it: in this order, each in a transaction of its own."""
        return [
            *self.slots.publication_statements(),
            self.slots.slot_statement(slot, version),
            f"UPDATE {self._set_mode(slot)}",
        ]

    def _set_mode(self, slot: str) -> str:
        # Whatever is streamed from now on gets a higher position than the last one that was given.
        last = f"coalesce(pg_sequence_last_value(pg_get_serial_sequence('{self.outbox}', 'position')::regclass), 0)"
        return (
            f"{self.tables['stream']} SET mode = '{Mode.DEBEZIUM}', slot = '{slot}', changed_at = {self.now}, "
            f"settled = {last}, {_UNMARKED} WHERE name = '{STREAM}' AND mode = '{Mode.TABLE}'"
        )

    def leave(self, note: Note = UNSIGNED, *, wait: bool = True) -> Steps[bool]:
        """Begin to go back to the table. Returns False if the outbox is there."""
        yield from self.transaction(self._take_back, note, wait)
        return (yield from self.mark()).mode is not Mode.TABLE

    def _take_back(self, note: Note, wait: bool) -> Steps[None]:  # noqa: FBT001 - passed on
        mark = yield from self.mark()
        if (yield from self._leadership.change_mode([Mode.DEBEZIUM], Mode.CLOSING)):
            yield from audit(self.names, DEBEZIUM_OFF, note, [(None, None, {"slot": mark.slot, "waits": wait})])

    def held_bytes(self) -> Steps[int | None]:
        """The log that the server keeps for Debezium; None if the outbox is not its, or its slot is gone."""
        mark = yield from self.mark()
        slot = (yield from self.slots.slot(mark.slot)) if mark.mode is Mode.DEBEZIUM else None
        return None if slot is None else slot.held_bytes

    def advance(self, *, wait: bool = True) -> Steps[str]:
        """Do what can be done now on the way back; returns what it waits for, or `FINISHED`.

        Without `wait`, whatever has no receipt is left to relays, which send it once more.
        """
        mark = yield from self.mark()
        waits = (yield from self._until_sent(mark)) if wait else FINISHED
        if not waits:
            waits = yield from self._switching.advance()
        if not waits and mark.slot:
            yield from self._drop_if_idle(mark.slot)
        return waits

    def _until_sent(self, mark: Mark) -> Steps[str]:
        """Have Debezium send the rest, before relays get their lanes back."""
        if mark.mode is Mode.CLOSING:
            found = yield Query(f"SELECT count(*) FROM {self.lane} WHERE leased_until > {self.now}")
            if found.rows[0][0]:
                return f"{found.rows[0][0]} lanes are still held"
            yield from self.statement(
                f"UPDATE {self.tables['stream']} SET mode = '{Mode.DRAINING}', changed_at = {self.now}, {_UNMARKED} "
                f"WHERE name = '{STREAM}' AND mode = '{Mode.CLOSING}' RETURNING 1",
                {},
            )
            mark = yield from self.mark()
        if mark.mode is not Mode.DRAINING:
            return FINISHED
        open_now = yield from self.slots.open_transactions()
        self._older = open_now if self._older is None else self._older & open_now
        if self._older:
            return f"{counted(self._older)} open transactions may have written to the stream"
        sent = SentByDebezium(self.names, modes=(Mode.DRAINING,))
        while not sent.done:
            yield from sent.page(ROWS)
        return FINISHED if sent.all_sent else f"Debezium has not confirmed all that it had to send: slot {mark.slot}"

    def _drop_if_idle(self, slot: str) -> Steps[None]:
        """Drop Debezium's slot, unless its connector still runs."""
        found = yield from self.slots.slot(slot)
        if found is not None and found.active_pid is None:
            yield from self.slots.drop_slot(slot)


_UNMARKED = "marked = 0, marked_before = 0, done = 0"


class SentByDebezium(Operations):
    """Writes receipts for what Debezium has sent, a page at a time, as far as its slot says so now.

    Several may do it at once. The rest is for the next time: what is marked now is sent by then.
    """

    def __init__(self, names: Names, modes: tuple[Mode, ...] = (Mode.DEBEZIUM,)) -> None:
        super().__init__(names)
        self.done = names.dialect != "postgresql"
        self.all_sent = False
        """Whether at the end, nothing was left that has no receipt."""
        self._modes = modes
        self._slots = Slots(names)
        self._debezium = Debezium(names)
        self._until: int | None = None

    def page(self, rows: int) -> Steps[int]:
        """Take the next step; returns 0, since nothing is removed."""
        if self.done:
            return 0
        mark = yield from self._debezium.mark()
        if mark.mode not in self._modes:
            self.done = True
        elif not mark.marked:
            self.done = not (yield from self._note_position(mark))
        elif not mark.place:
            self.done = not (yield from self._note_place(mark))
        elif (yield from self._has_sent(mark)):
            yield from self._write_receipts(mark, rows)
        else:
            self.done = True
        return 0

    def _note_position(self, mark: Mark) -> Steps[bool]:
        """Note the last position; returns False if there is none that is new, or one was settled already."""
        found = yield Query(
            f"SELECT max(position), (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint FROM {self.outbox} "
            "WHERE position > :settled",
            {"settled": mark.settled},
        )
        [[last, before]] = found.rows
        self.all_sent = last is None
        if last is None:
            return False
        yield from self._change(mark, "marked = :marked_now, marked_before = :before", marked_now=last, before=before)
        is_first = self._until is None
        self._until = last
        return is_first

    def _note_place(self, mark: Mark) -> Steps[bool]:
        """Note where the log is, if no lower position can be committed any more."""
        found = yield Query(
            "SELECT (pg_snapshot_xmin(pg_current_snapshot())::text)::bigint >= :before::bigint",
            {"before": mark.marked_before},
        )
        if not found.rows[0][0]:
            return False
        yield from self._change(mark, f"done = {PLACE.format('pg_current_wal_insert_lsn()')}")
        return True

    def _has_sent(self, mark: Mark) -> Steps[bool]:
        slot = yield from self._slots.slot(mark.slot)
        return slot is not None and slot.wal_status != LOST and slot.confirmed >= mark.place

    def _write_receipts(self, mark: Mark, rows: int) -> Steps[None]:
        """For the next page of what was marked; at its end, the mark is removed."""
        yield from self.statement(
            f"""
            WITH page AS MATERIALIZED (
                SELECT position, streamed FROM {self.outbox}
                WHERE position > :settled::bigint AND position <= :marked::bigint ORDER BY position LIMIT :rows::bigint
            ), receipts AS (
                INSERT INTO {self.receipt} (position, attempts, outcome)
                SELECT position, 0, 'sent' FROM page WHERE streamed ON CONFLICT DO NOTHING
            ), reached AS (
                SELECT CASE WHEN count(*) < :rows::bigint THEN :marked::bigint ELSE max(position) END AS position
                FROM page
            )
            UPDATE {self.tables["stream"]} s SET settled = reached.position,
                marked = CASE WHEN reached.position = s.marked THEN 0 ELSE s.marked END,
                marked_before = CASE WHEN reached.position = s.marked THEN 0 ELSE s.marked_before END,
                done = CASE WHEN reached.position = s.marked THEN 0 ELSE s.done END
            FROM reached
            WHERE s.name = '{STREAM}' AND s.settled = :settled::bigint AND s.marked = :marked::bigint RETURNING 1""",
            {"settled": mark.settled, "marked": mark.marked, "rows": rows},
        )

    def _change(self, mark: Mark, values: str, **params: int) -> Steps[None]:
        """Change the mark, unless somebody else did."""
        yield from self.statement(
            f"UPDATE {self.tables['stream']} SET {values} WHERE name = '{STREAM}' AND mode = :mode "
            "AND marked = :marked::bigint AND done = :place::bigint RETURNING 1",
            {"mode": str(mark.mode), "marked": mark.marked, "place": mark.place, **params},
        )
