"""List messages, without their payloads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.lifecycle import State, Stored
from postroom.rules.ordering import Order
from postroom.rules.stream.modes import Mode
from postroom.store.admin.newest_first import PAYLOAD_SCAN, SCAN, Found, NewestFirst, Place
from postroom.store.admin.status import SENDING_LANE, STATUS
from postroom.store.admin.text_search import ERROR_TEXT, containing
from postroom.store.sql.behind import is_behind
from postroom.store.sql.dialect import ALL_LANES, text, whole_numbers
from postroom.store.sql.rows import shown
from postroom.store.sql.states import found_by_key, unsettled
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from postroom.message import Key
    from postroom.store.sql.names import Names

SENDING_SCAN = 20_000
"""What is being sent is among the oldest of what is ready, so more is looked at."""


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message and what has become of it."""

    position: int
    id: str | None
    queue: str
    topic: str | None
    type: str | None
    key: str | None
    status: State | None = None
    """None for half a message: one without a delivery, which no relay will find."""
    attempts: int = 0
    due: datetime | None = None
    owner: str | None = None
    leased_until: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    created_at: datetime | None = None
    sent_at: datetime | None = None


COLUMNS = tuple(field.name for field in fields(ListedMessage))
"""The columns of the view `outbox_status`, which tells the same."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages are listed: those that match all that is given."""

    status: State | None = None
    queue: str | None = None
    topic: str | None = None
    key: Key | None = None
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    payload: str | None = None


class _Unsent(NamedTuple):
    """What a delivery says of its message."""

    queue: str
    status: str
    attempts: int
    due: Any
    owner: str | None
    leased_until: Any
    error_code: str
    error_message: str


class MessageList(NewestFirst):
    """Messages of all queues, sent or not."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        behind = is_behind(names, Order.HOLD)
        words = {**self.tables, "now": self.now, "behind": behind}
        self._status, self._sending_lane = STATUS.format(**words), SENDING_LANE.format(**words)
        self._sending = (
            f"(d.leased_until > {self.now} OR EXISTS (SELECT 1 FROM {self.lane} l WHERE l.queue = d.queue "
            f"AND l.lane = d.lane AND l.leased_until > {self.now} AND d.position <= l.read_to AND NOT {behind}))"
        )

    def listed(
        self, wanted: Wanted, limit: int = 50, before: int | None = None
    ) -> Steps[tuple[list[ListedMessage], Found]]:
        """Messages that match, newest first, from before a position on; and how far the search came.

        Half a message, which has neither a state nor a queue, is listed where neither is asked for.
        """
        on_message, params = self._on_message(wanted)
        after = 0
        if wanted.since is not None:
            after = yield from self.position_before(wanted.since)
        if wanted.until is not None:
            end = yield from self.position_after(wanted.until)
            before = end if before is None else min(before, end)
        places = yield from self._places(wanted, on_message, params)
        scan = SCAN if wanted.payload is None else PAYLOAD_SCAN
        scan = SENDING_SCAN if wanted.status is State.SENDING else scan
        found = yield from self.newest(places, params, limit, before=before, after=after, scan=scan)
        rows = yield from self._read(found.positions)
        return [row for row in rows if _is_as_wanted(row, wanted)], found

    def _on_message(self, wanted: Wanted) -> tuple[str, dict[str, Any]]:
        """What is asked of message `m`, each condition with AND before it."""
        moment = self.dialect.moment
        conditions = {
            "topic": ("m.topic = :topic", wanted.topic),
            "key": ("m.ordering_key = :key", None if wanted.key is None else str(wanted.key)),
            "type": ("m.type = :type", wanted.type),
            "since": ("m.created_at >= :since", moment(wanted.since)),
            "until": ("m.created_at < :until", moment(wanted.until)),
            "payload": (
                self.dialect.contains("m.payload", ":payload"),
                None if wanted.payload is None else wanted.payload.encode(),
            ),
        }
        given = {name: one for name, one in conditions.items() if one[1] is not None}
        return "".join(f"AND {sql} " for sql, _ in given.values()), {name: value for name, (_, value) in given.items()}

    def _places(self, wanted: Wanted, on_message: str, params: dict[str, Any]) -> Steps[list[Place]]:
        """Where those may be that match."""
        if wanted.status is None and wanted.queue is None and wanted.error is None:
            return [Place(f"{self.outbox} m WHERE 1 = 1 ", "m.position", f"1 = 1 {on_message}")]
        places: list[Place] = []
        if wanted.status in (None, State.PENDING) and wanted.error is None and (yield from self._is_in_stream()):
            # What is in the stream has no delivery. Where it got one meanwhile, it is found twice.
            places.append(self._streamed(wanted, on_message, params))
        settled = wanted.error is None and wanted.status in (None, State.SENT, State.EXPIRED)
        if settled and wanted.status is None:  # of one queue
            params["added_to"] = wanted.queue
            places.append(Place(f"{self.outbox} m WHERE 1 = 1 ", "m.position", f"m.queue = :added_to {on_message}"))
        elif settled:
            outcome = f"r.outcome {'=' if wanted.status is State.EXPIRED else '<>'} 'expired'"
            if wanted.queue is not None:
                params["added_to"] = wanted.queue
                on_message += "AND m.queue = :added_to "
            places.append(
                Place(f"{self.receipt} r WHERE 1 = 1 ", "r.position", f"{outcome} {self._of('r', on_message)}")
            )
        for stored in Stored:
            condition = self._in_status(stored, wanted.status)
            if condition is not None:
                if wanted.error is not None:
                    params |= {"error": containing(wanted.error)}
                    condition += f" AND {ERROR_TEXT}"
                condition += f" {self._of('d', on_message)}"
                places += yield from self._deliveries(stored, wanted.queue, condition, params)
        return places

    def _is_in_stream(self) -> Steps[bool]:
        if self.dialect.name != "postgresql":
            return False
        return (yield from Leadership(self.names).state()).mode is not Mode.TABLE

    def _streamed(self, wanted: Wanted, on_message: str, params: dict[str, Any]) -> Place:
        if wanted.queue is not None:
            params["added_to"] = wanted.queue
            on_message += "AND m.queue = :added_to "
        without = f"NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = m.position)"
        return Place(f"{self.outbox} m WHERE m.streamed ", "m.position", f"{without} {on_message}")

    def _of(self, alias: str, on_message: str) -> str:
        """The conditions on the message of a row. A scalar subquery, which no planner turns round."""
        if not on_message:
            return ""
        return f"AND (SELECT 1 FROM {self.outbox} m WHERE m.position = {alias}.position {on_message}) = 1"

    def _in_status(self, stored: Stored, status: State | None) -> str | None:
        """Which deliveries in a stored state have a status; None if none can."""
        due = f"d.due <= {self.now}"
        match status, stored:
            case (None, _) | (State.DEAD, Stored.DEAD):
                return "1 = 1"
            case State.SENDING, Stored.READY:
                return self._sending
            case State.PENDING, Stored.READY:
                return f"NOT {self._sending}"
            case State.PENDING, Stored.SCHEDULED | Stored.RETRY:
                return due
            case State.WAITING, Stored.SCHEDULED | Stored.RETRY:
                return f"NOT {due}"
            case _:
                return None

    def _deliveries(
        self, stored: Stored, queue: str | None, condition: str, params: dict[str, Any]
    ) -> Steps[list[Place]]:
        places: list[Place] = []
        for number, one in enumerate((yield from self.queues_with(stored)) if queue is None else [queue]):
            label = f"queue_{int(stored)}_{number}"
            params[label] = one
            places += [
                Place(
                    f"{self.delivery} d{self.dialect.by_primary_key} WHERE {found_by_key(stored, 'd')} "
                    f"AND d.queue = :{label} AND d.lane = {lane} ",
                    "d.position",
                    condition,
                )
                for lane in (yield from self.lanes_with(stored, one))
            ]
        return places

    def _read(self, positions: Sequence[int]) -> Steps[list[ListedMessage]]:
        """What there is to tell of these, in their order."""
        # Deliveries first: a message that is settled meanwhile is then found twice, and not nowhere.
        deliveries = yield from self._unsent(positions)
        found = yield Query(
            f"SELECT position, outcome, {self.dialect.readable('sent_at')}, attempts FROM {self.receipt} "
            f"WHERE position IN ({whole_numbers(positions)})"
        )
        receipts = {row[0]: row[1:] for row in found.rows}
        found = yield Query(
            f"SELECT position, id, queue, topic, type, ordering_key, {self.dialect.readable('created_at')}, "
            f"{'streamed' if self.dialect.name == 'postgresql' else '0'} "
            f"FROM {self.outbox} WHERE position IN ({whole_numbers(positions)}) ORDER BY position DESC"
        )
        return [self._listed(row, deliveries.get(row[0]), receipts.get(row[0])) for row in found.rows]

    def _unsent(self, positions: Sequence[int]) -> Steps[Mapping[int, _Unsent]]:
        queues: dict[str, None] = {}
        for stored in Stored if positions else ():
            queues |= dict.fromkeys((yield from self.queues_with(stored)))
        labels = {f"queue_{n}": queue for n, queue in enumerate(queues)}
        if not labels:
            return {}
        due, leased_until = (self._when(moment) for moment in ("d.due", "coalesce(l.leased_until, d.leased_until)"))
        found = yield Query(
            f"SELECT d.position, d.queue, {self._status}, d.attempts, {due}, coalesce(l.owner, d.owner), "
            f"{leased_until}, d.error_code, d.error_message FROM {self.delivery} d {self._sending_lane} "
            f"WHERE {unsettled('d')} AND d.queue IN ({', '.join(f':{label}' for label in labels)}) "
            f"AND d.lane IN ({ALL_LANES}) AND d.position IN ({whole_numbers(positions)})",
            labels,
        )
        return {row[0]: _Unsent(*row[1:]) for row in found.rows}

    def _when(self, moment: str) -> str:
        return f"nullif({self.dialect.readable(moment)}, {self.dialect.never})"

    def _listed(self, row: Sequence[Any], unsent: _Unsent | None, receipt: Sequence[Any] | None) -> ListedMessage:
        position, identifier, added_to, topic, kind, key, created_at, streamed = row
        read = self.dialect.read_moment
        listed = ListedMessage(
            position=position,
            id=shown(identifier),
            queue=text(added_to),
            topic=shown(topic),
            type=shown(kind),
            key=shown(key),
            created_at=read(created_at),
        )
        if receipt is not None:
            outcome, sent_at, attempts = receipt
            status = State.EXPIRED if outcome == "expired" else State.SENT
            return replace(listed, status=status, attempts=attempts, sent_at=read(sent_at))
        if unsent is None:
            return replace(listed, status=State.PENDING) if streamed else listed
        return replace(
            listed,
            queue=text(unsent.queue),
            status=State(unsent.status),
            attempts=unsent.attempts,
            due=read(unsent.due),
            owner=unsent.owner or None,
            leased_until=read(unsent.leased_until),
            error_code=unsent.error_code or None,
            error_message=unsent.error_message or None,
        )


def _is_as_wanted(row: ListedMessage, wanted: Wanted) -> bool:
    """Still: it may have been sent, or have failed, since it was found. Its queue is that of its delivery."""
    if wanted.status is not None and row.status is not wanted.status:
        return False
    return wanted.queue is None or (row.queue == wanted.queue and row.status is not None)
