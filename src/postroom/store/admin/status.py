"""Questions about the tables that change nothing."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from postroom.rules.lifecycle import State
from postroom.rules.ordering import Order
from postroom.store.outbox.holding import Holding
from postroom.store.outbox.workers import ALIVE_SECONDS
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.rows import shown
from postroom.store.sql.states import comes_due, dead, holds_key, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.names import Names

LISTED = (
    "position",
    "id",
    "queue",
    "topic",
    "type",
    "key",
    "status",
    "attempts",
    "due",
    "owner",
    "leased_until",
    "error_code",
    "error_message",
    "created_at",
    "sent_at",
)
"""The columns of the view `outbox_status`."""
MOMENTS = ("due", "leased_until", "created_at", "sent_at")

STATUS = f"""\
CASE
        WHEN {dead("d")} THEN 'dead'
        WHEN {comes_due("d")} AND d.due > {{now}} THEN 'waiting'
        WHEN {ready("d")} AND (d.leased_until > {{now}} OR l.lane IS NOT NULL) THEN 'sending'
        ELSE 'pending'
    END"""
"""The state of a delivery `d` in the words that people see, where `l` is the lane that it is being sent in."""

BEHIND = """\
EXISTS (
        SELECT 1 FROM {delivery} b
        WHERE b.queue = d.queue AND b.key_hash = d.key_hash AND b.position < d.position AND {holds_key}
    )"""
"""A failed or dead message stands before delivery `d` on its key."""

SENDING_LANE = f"""\
LEFT JOIN {{lane}} l ON {ready("d")} AND l.queue = d.queue AND l.lane = d.lane
    AND l.leased_until > {{now}} AND d.position <= l.read_to AND NOT {BEHIND}"""
"""The lane that a delivery is being sent in: read by the lane's holder, and nothing stands before it."""


class StatusReader(Holding):
    """Counts and lists over all queues. Whether dead messages hold their key back, the relays' settings say."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self.holds_key = holds_key(order, "b")
        words = {**self.tables, "now": self.now, "holds_key": self.holds_key}
        self._status, self._behind, self._sending_lane = (
            template.format(**words) for template in (STATUS, BEHIND, SENDING_LANE)
        )

    def counts(self) -> Steps[dict[State, int]]:
        """How many messages are in each state."""
        by_state = dict.fromkeys(State, 0)
        unsent = yield Query(f"SELECT {self._status}, count(*) FROM {self.delivery} d {self._sending_lane} GROUP BY 1")
        settled = yield Query(
            f"SELECT CASE outcome WHEN 'expired' THEN 'expired' ELSE 'sent' END, count(*) "
            f"FROM {self.receipt} GROUP BY 1"
        )
        for name, count in (*unsent.rows, *settled.rows):
            by_state[State(name)] += count
        return by_state

    def held(self) -> Steps[int]:
        """How many messages stand behind one of their key that holds them: failed or, under `hold`, dead."""
        result = yield Query(
            f"SELECT count(*) FROM {self.delivery} d WHERE {ready('d')} AND d.key_hash IS NOT NULL AND {self._behind}"
        )
        return int(result.rows[0][0])

    def oldest_pending(self) -> Steps[float]:
        """For how many seconds the oldest message that could leave has been waiting; 0 if there is none."""
        oldest = (
            f"SELECT d.position, d.due FROM {self.delivery} d {self._sending_lane} "
            f"WHERE {self._status} = 'pending' AND NOT {self._behind} ORDER BY d.position LIMIT 1"
        )
        # What was due later has been waiting only since then.
        since = self.dialect.seconds_since("CASE WHEN d.due > m.created_at THEN d.due ELSE m.created_at END")
        waited = yield Query(f"SELECT {since} FROM ({oldest}) d JOIN {self.outbox} m ON m.position = d.position")
        return max(0.0, float(waited.rows[0][0] or 0.0)) if waited.rows else 0.0

    def relays(self) -> Steps[list[dict[str, Any]]]:
        """The relays that are alive, as rows of `relay_worker`, each with how long ago it was seen."""
        found = yield Query(
            f"SELECT worker, queue, host, pid, lanes, in_flight, broker_down, started_at, "
            f"{self.dialect.seconds_since('seen_at')} FROM {self.tables['worker']} "
            f"WHERE seen_at > {self.dialect.later(':silent')} ORDER BY queue, worker",
            {"silent": -ALIVE_SECONDS},
        )
        names = ("worker", "queue", "host", "pid", "lanes", "in_flight", "broker_down")
        return [
            {
                **dict(zip(names, row, strict=False)),
                "broker_down": row[6] or None,
                "started_at": self.dialect.read_moment(row[7]),
                "seen_seconds_ago": round(max(0.0, float(row[8])), 3),
            }
            for row in found.rows
        ]

    def messages(self, state: State | None, limit: int, before: int | None) -> Steps[list[dict[str, Any]]]:
        """Messages, newest first, as rows of the view `outbox_status`; `before` pages on behind a position.

        Without a state also those that the view does not have, since only half of them was written.
        """
        params: dict[str, Any] = {"limit": limit, "before": before if before is not None else 2**63 - 1}
        if state is not None:
            return (yield from self._rows("status = :status AND position < :before", {**params, "status": state.value}))
        page = yield Query(
            f"SELECT position FROM {self.outbox} WHERE position < :before ORDER BY position DESC LIMIT :limit", params
        )
        positions = [position for [position] in page.rows]
        listed = yield from self._rows(f"position IN ({whole_numbers(positions)})", params)
        if halves := set(positions) - {row["position"] for row in listed}:
            listed += yield from self._halves(sorted(halves))
        return sorted(listed, key=itemgetter("position"), reverse=True)

    def _rows(self, condition: str, params: dict[str, Any]) -> Steps[list[dict[str, Any]]]:
        columns = ", ".join(
            self.dialect.readable(name) if name in MOMENTS else self.names.quoted(name) for name in LISTED
        )
        found = yield Query(
            f"SELECT {columns} FROM {self.tables['status_view']} WHERE {condition} ORDER BY position DESC LIMIT :limit",
            params,
        )
        return [self._listed(row) for row in found.rows]

    def _halves(self, positions: Sequence[int]) -> Steps[list[dict[str, Any]]]:
        """Messages of which a program in plain SQL wrote only half: they have no state."""
        values = {name: name for name in ("position", "id", "queue", "topic", "type")}
        values |= {"key": "ordering_key", "attempts": "0", "created_at": self.dialect.readable("created_at")}
        found = yield Query(
            f"SELECT {', '.join(values.get(name, 'NULL') for name in LISTED)} FROM {self.outbox} "
            f"WHERE position IN ({whole_numbers(positions)})"
        )
        return [self._listed(row) for row in found.rows]

    def _listed(self, row: Row) -> dict[str, Any]:
        listed = dict(zip(LISTED, row, strict=True))
        for name in ("id", "topic", "type", "key"):
            listed[name] = shown(listed[name])
        for name in MOMENTS:
            listed[name] = self.dialect.read_moment(listed[name])
        return listed
