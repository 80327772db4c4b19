"""Cancel messages that are neither sent nor dead, unless a relay is sending them right now; each act is audited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE, Order
from postroom.rules.why_not_sent import Facts, WhyNotSent, why_not_sent
from postroom.store.admin.audit import UNSIGNED, Note, audit
from postroom.store.admin.message_filter import ALL, Filter
from postroom.store.admin.selection import Acted, Batch, KeyRange, Progress, SelectedDeliveries, named_ids
from postroom.store.ledger.confirmations import Confirmations
from postroom.store.ledger.message_outcomes import cancellation_of
from postroom.store.sql.behind import is_behind
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import CHUNK, Place, chunks, read_up_to
from postroom.store.sql.rows import headers_of, shown, uuid_of
from postroom.store.sql.states import in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroom.store.sql.names import Names


class _Unsent(NamedTuple):
    position: int
    lane: int
    blocked: bool
    leased: bool
    attempts: int
    error_code: str
    id: str | None
    topic: str | None
    key: str | None
    headers: Any


class _Holder(NamedTuple):
    """Who reads a lane: how far it has come, and whether it cannot reach its broker."""

    read_to: int
    down: bool


class Cancellation(SelectedDeliveries):
    """Unsent messages of all queues."""

    # Last what holds its key back: otherwise those behind it would be sent before their turn to be cancelled comes.
    states = (Stored.SCHEDULED, Stored.READY, Stored.RETRY)
    since = "m.created_at"
    ledger_keep = 24 * 3600.0
    """Seconds for which the ledger keeps that a keyed request has failed with its message."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self._blocked = is_behind(names, order)

    def cancel(self, which: Filter = ALL, note: Note = UNSIGNED, progress: Progress | None = None) -> Steps[Acted]:
        """Remove messages for good, and let those behind them on their keys go in their order.

        Sagas are left alone.
        """
        done = yield from self.act(which, partial(self._batch, which, note), progress)
        done.sagas = yield from self.sagas(which)
        if which.ids is not None and (which.code, which.queue, which.status) == (None, None, None):
            left = sorted({*map(str, which.ids)} - {*map(str, done.ids), *map(str, done.sending)})
            for chunk in chunks(left):
                halves = yield from self.transaction(self._remove_halves, which, note, chunk)
                done.count += len(halves)
                done.ids += halves
        return done

    def _remove_halves(self, which: Filter, note: Note, ids: Sequence[str]) -> Steps[list[UUID]]:
        """Messages without a delivery, of which a program in plain SQL wrote only half: nobody will ever send them.

        One statement looks, since a message changes its place while relays work. It reads all deliveries, so it is only
        for ids that are given, and were not found otherwise.
        """
        conditions, params = self.conditions(which)
        if self.dialect.name == "postgresql":  # what is in the stream was read by nobody yet, but cannot be stopped
            conditions += " AND NOT m.streamed"
        named = named_ids(ids)
        found = yield Query(
            f"SELECT m.position, m.id, m.topic, m.ordering_key FROM {self.outbox} m "
            f"WHERE m.id IN ({', '.join(f':{name}' for name in named)}) "
            f"AND NOT EXISTS (SELECT 1 FROM {self.delivery} d WHERE d.position = m.position) "
            f"AND NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = m.position) {conditions}",
            {**params, **named},
        )
        if not found.rows:
            return []
        yield Query(f"DELETE FROM {self.outbox} WHERE position IN ({whole_numbers([row[0] for row in found.rows])})")
        entries = [
            (position, shown(one), {"topic": shown(topic), "key": shown(key)})
            for position, one, topic, key in found.rows
        ]
        yield from audit(self.names, "cancel", note, entries)
        return [one for row in found.rows if (one := uuid_of(row[1]))]

    def _batch(self, which: Filter, note: Note, part: KeyRange, after: int) -> Steps[Batch]:
        holder = None
        if part.lane != NO_LANE:
            yield from self.reread_lanes(part.queue, [part.lane])
            holder = yield from self._holder(part)
        conditions, params = self.conditions(which)
        found = yield Query(
            f"SELECT d.position, d.lane, {self._blocked}, d.leased_until > {self.now}, d.attempts, d.error_code, "
            f"m.id, m.topic, m.ordering_key, m.headers {self.source} WHERE {part.condition(after)}{conditions}"
            f"{self.but_sagas(part.queue)}ORDER BY d.position LIMIT {CHUNK}{self.dialect.for_update_of('d')}",
            {**params, "queue": part.queue},
        )
        rows = [_Unsent(*row) for row in found.rows]
        free = [row for row in rows if not is_sending(part.state, row, holder)]
        if free:
            yield from self._remove(part, free)
            entries = [(row.position, shown(row.id), _details(row)) for row in free]
            yield from audit(self.names, "cancel", note, entries)
        done = {row.position: uuid_of(row.id) for row in free}
        sending = [one for row in rows if row.position not in done and (one := uuid_of(row.id))]
        return Batch(done, sending, rows[-1].position if len(rows) == CHUNK else None)

    def _remove(self, part: KeyRange, rows: Sequence[_Unsent]) -> Steps[None]:
        """The rows go, and keyed requests that waited for these messages have failed."""
        told = [cancellation_of(headers_of(row.headers)) for row in rows if row.headers]
        if failed := [one for one in told if one is not None]:
            yield from Confirmations(self.names).confirm(failed, self.ledger_keep)
        places = self.places([Place(row.lane, row.position) for row in rows])
        yield Query(
            f"DELETE FROM {self.delivery} WHERE {in_state(part.state)} AND queue = :queue AND {places}",
            {"queue": part.queue},
        )
        positions = whole_numbers([row.position for row in rows])
        for table in (self.tables["attempt"], self.outbox):
            yield Query(f"DELETE FROM {table} WHERE position IN ({positions})")

    def _holder(self, part: KeyRange) -> Steps[_Holder | None]:
        found = yield Query(
            f"SELECT l.read_to, coalesce(w.broker_down, '') <> '' FROM {self.lane} l "
            f"LEFT JOIN {self.tables['worker']} w ON w.worker = l.owner AND w.queue = l.queue "
            f"WHERE l.queue = :queue AND l.lane = {part.lane} AND l.leased_until > {self.now}",
            {"queue": part.queue},
        )
        return _Holder(read_up_to(found.rows[0][0]), bool(found.rows[0][1])) if found.rows else None


def is_sending(state: Stored, row: _Unsent, holder: _Holder | None) -> bool:
    """Whether a relay may be sending it right now."""
    in_lane = holder is not None and row.position <= holder.read_to
    known = Facts(
        stored=state,
        blocked=bool(row.blocked),
        taken=state is Stored.READY and bool(row.leased or in_lane),
        lane_held=holder is not None,
        holder_down=holder is not None and holder.down,
    )
    return why_not_sent(known) is WhyNotSent.SENDING


def _details(row: _Unsent) -> dict[str, Any]:
    return {"topic": shown(row.topic), "key": shown(row.key), "attempts": row.attempts, "error_code": row.error_code}
