"""Cancellation: remove messages that are neither sent nor dead, unless a relay is just sending them; audited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE, Order
from postroom.rules.why_not_sent import Facts, WhyNotSent, why_not_sent
from postroom.store.admin.audit import audit
from postroom.store.admin.dead_letters import ALL, Choice
from postroom.store.ledger.confirming import Confirming
from postroom.store.ledger.ledgered import cancellation_of
from postroom.store.sql.dialect import ALL_LANES, whole_numbers
from postroom.store.sql.operations import CHUNK, Place, chunks, read_up_to
from postroom.store.sql.rows import headers_of, shown, uuid_of
from postroom.store.sql.states import holds_key, in_state
from postroom.store.sql.steps import Query, Steps
from postroom.store.sql.walking import Walking

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from postroom.store.admin.dead_letters import Tell
    from postroom.store.sql.names import Names

# Last what holds its key back: otherwise those behind it would be sent before their turn to be cancelled comes.
_STATES = (Stored.SCHEDULED, Stored.READY, Stored.RETRY)


@dataclass
class Cancelled:
    """How many messages were cancelled, and which; and which were not, because a relay was sending them."""

    count: int = 0
    ids: list[UUID] = field(default_factory=list)
    sending: list[UUID] = field(default_factory=list)


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
    """Who reads a lane, how far it has come, and whether it does not reach its broker."""

    read_to: int
    down: bool


class _Batch(NamedTuple):
    done: int
    ids: list[UUID]
    sending: list[UUID]
    last: int | None
    """Behind this position there may be more."""


class _Where(NamedTuple):
    """A part of the primary key, and which positions in it."""

    state: Stored
    queue: str
    lane: int
    which: str


class Cancellation(Walking):
    """Messages of all queues. In batches, each a transaction of its own."""

    ledger_keep = 24 * 3600.0
    """Seconds for which the ledger keeps that a keyed request has failed with its message."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self._holds_key = holds_key(order, "b")

    def count(self, choice: Choice = ALL) -> Steps[int]:
        """How many there are, those included that a relay is sending. Reads all that is unsent, unless given ids."""
        chosen, params = self._chosen(choice)
        counted = 0
        for where in (yield from self._everywhere(choice)):
            found = yield Query(
                f"SELECT count(*) FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position "
                f"WHERE {_part(where)} AND {where.which} {chosen}",
                {**params, "queue": where.queue},
            )
            counted += int(found.rows[0][0])
        return counted

    def cancel(self, choice: Choice = ALL, actor: str = "", tell: Tell | None = None) -> Steps[Cancelled]:
        """Remove messages for good, and let those behind them on their keys go in their order."""
        done = Cancelled()
        for where in (yield from self._everywhere(choice)):
            after: int | None = 0
            while after is not None:
                batch = yield from self.transaction(self._batch, where, choice, actor, after)
                done.count += batch.done
                done.ids += batch.ids
                done.sending += batch.sending
                after = batch.last
                if tell:
                    tell(batch.done)
        left = {*(choice.ids or ())} - {*done.ids, *done.sending} if choice.code is None else ()
        for chunk in chunks(sorted(left)):
            halves = yield from self.transaction(self._remove_halves, choice, actor, chunk)
            done.count += len(halves)
            done.ids += halves
        return done

    def _remove_halves(self, choice: Choice, actor: str, ids: Sequence[UUID]) -> Steps[list[UUID]]:
        """Messages without a delivery, of which a program in plain SQL wrote only half: nobody will ever send them.

        One statement looks, since a message changes its place while relays work. It reads all deliveries, so it is only
        for ids that are given, and were not found otherwise.
        """
        chosen, params = self._chosen(choice)
        names = ", ".join(f":id_{n}" for n in range(len(ids)))
        found = yield Query(
            f"SELECT m.position, m.id, m.topic, m.ordering_key FROM {self.outbox} m WHERE m.id IN ({names}) "
            f"AND NOT EXISTS (SELECT 1 FROM {self.delivery} d WHERE d.position = m.position) "
            f"AND NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = m.position) {chosen}",
            {**params, **{f"id_{n}": str(one) for n, one in enumerate(ids)}},
        )
        if not found.rows:
            return []
        yield Query(f"DELETE FROM {self.outbox} WHERE position IN ({whole_numbers([row[0] for row in found.rows])})")
        details = [{"topic": shown(topic), "key": shown(key)} for _, _, topic, key in found.rows]
        acts = [(row[0], shown(row[1]), told) for row, told in zip(found.rows, details, strict=True)]
        yield from audit(self.names, "cancel", actor, acts)
        return [one for row in found.rows if (one := uuid_of(row[1]))]

    def _everywhere(self, choice: Choice) -> Steps[list[_Where]]:
        places: list[_Where] = []
        for state in _STATES:
            for queue in (yield from self.queues_with(state)):
                if choice.ids is not None:
                    places += yield from self._places(state, queue, choice.ids)
                else:
                    lanes = yield from self.lanes_with(state, queue)
                    places += [_Where(state, queue, lane, "d.position > 0") for lane in lanes]
        return places

    def _places(self, state: Stored, queue: str, ids: Collection[UUID]) -> Steps[list[_Where]]:
        places: list[_Where] = []
        for chunk in chunks(sorted(map(str, ids))):
            names = ", ".join(f":id_{n}" for n in range(len(chunk)))
            found = yield Query(
                f"SELECT position FROM {self.outbox} WHERE id IN ({names})",
                {f"id_{n}": one for n, one in enumerate(chunk)},
            )
            wanted = whole_numbers(sorted(position for [position] in found.rows))
            rows = yield Query(
                f"SELECT lane, position FROM {self.delivery} WHERE {in_state(state)} AND queue = :queue "
                f"AND lane IN ({ALL_LANES}) AND position IN ({wanted})",
                {"queue": queue},
            )
            lanes: dict[int, list[int]] = {}
            for lane, position in rows.rows:
                lanes.setdefault(lane, []).append(position)
            places += [
                _Where(state, queue, lane, f"d.position IN ({whole_numbers(sorted(some))})")
                for lane, some in sorted(lanes.items())
            ]
        return places

    def _batch(self, where: _Where, choice: Choice, actor: str, after: int) -> Steps[_Batch]:
        holder = None
        if where.lane != NO_LANE:
            yield from self.begin_anew(where.queue, [where.lane])
            holder = yield from self._holder(where)
        chosen, params = self._chosen(choice)
        found = yield Query(
            f"SELECT d.position, d.lane, {self._blocked()}, d.leased_until > {self.now}, d.attempts, d.error_code, "
            f"m.id, m.topic, m.ordering_key, m.headers "
            f"FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position "
            f"WHERE {_part(where)} AND {where.which} AND d.position > {after} {chosen}"
            f"ORDER BY d.position LIMIT {CHUNK}{self.dialect.for_update_of('d')}",
            {**params, "queue": where.queue},
        )
        rows = [_Unsent(*row) for row in found.rows]
        free = [row for row in rows if not is_sending(where.state, row, holder)]
        if free:
            yield from self._remove(where, free)
            yield from audit(
                self.names, "cancel", actor, [(row.position, shown(row.id), _details(row)) for row in free]
            )
        ids = {row.position: known for row in rows if (known := uuid_of(row.id))}
        gone = {row.position for row in free}
        return _Batch(
            len(free),
            [one for position, one in ids.items() if position in gone],
            [one for position, one in ids.items() if position not in gone],
            rows[-1].position if len(rows) == CHUNK else None,
        )

    def _remove(self, where: _Where, rows: Sequence[_Unsent]) -> Steps[None]:
        """The rows go, and keyed requests that waited for these messages have failed."""
        told = [cancellation_of(headers_of(row.headers)) for row in rows if row.headers]
        if failed := [one for one in told if one is not None]:
            yield from Confirming(self.names).confirm(failed, self.ledger_keep)
        places = self.places([Place(row.lane, row.position) for row in rows])
        yield Query(
            f"DELETE FROM {self.delivery} WHERE {in_state(where.state)} AND queue = :queue AND {places}",
            {"queue": where.queue},
        )
        positions = whole_numbers([row.position for row in rows])
        yield Query(f"DELETE FROM {self.outbox} WHERE position IN ({positions})")

    def _holder(self, where: _Where) -> Steps[_Holder | None]:
        found = yield Query(
            f"SELECT l.read_to, coalesce(w.broker_down, '') <> '' FROM {self.lane} l "
            f"LEFT JOIN {self.tables['worker']} w ON w.worker = l.owner AND w.queue = l.queue "
            f"WHERE l.queue = :queue AND l.lane = {where.lane} AND l.leased_until > {self.now}",
            {"queue": where.queue},
        )
        return _Holder(read_up_to(found.rows[0][0]), bool(found.rows[0][1])) if found.rows else None

    def _blocked(self) -> str:
        return (
            f"EXISTS (SELECT 1 FROM {self.delivery} b WHERE b.queue = d.queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND {self._holds_key})"
        )

    def _chosen(self, choice: Choice) -> tuple[str, dict[str, Any]]:
        older = None if choice.older_than is None else -float(choice.older_than)
        conditions = {
            "topic": ("m.topic = :topic", choice.topic),
            "key": ("m.ordering_key = :key", choice.key),
            "code": ("d.error_code = :code", choice.code),
            "older": (f"m.created_at <= {self.dialect.later(':older')}", older),
        }
        given = {name: condition for name, condition in conditions.items() if condition[1] is not None}
        text = "".join(f"AND {text} " for text, _ in given.values())
        return text, {name: value for name, (_, value) in given.items()}


def _part(where: _Where) -> str:
    return f"{in_state(where.state, 'd')} AND d.queue = :queue AND d.lane = {where.lane}"


def is_sending(state: Stored, row: _Unsent, holder: _Holder | None) -> bool:
    """Whether a relay may be just sending it."""
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
