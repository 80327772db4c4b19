"""Facts about what moves: backlog, dead letters, held keys, leases, and what is old. Each read is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.checks.flow import HeldKey, Overdue, Waiting
from postroom.rules.checks.unfinished import Unsettled
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE, TWOPHASE_QUEUE
from postroom.rules.ordering import Order
from postroom.rules.replay import Status
from postroom.rules.routing import HANDLERS
from postroom.rules.twophase_state import TransactionState
from postroom.store.admin.backlog import BacklogReader
from postroom.store.admin.partitions import LEFT_TO_PARTITIONS, Partitions
from postroom.store.admin.transactions import Transactions
from postroom.store.sql.behind import first_before
from postroom.store.sql.dialect import ALL_LANES, text, whole_numbers
from postroom.store.sql.operations import Operations
from postroom.store.sql.rows import uuid_of
from postroom.store.sql.states import dead, ready, unsettled
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import WITNESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.names import Names

SAMPLE = 1000
"""Rows of a table that are looked at."""
MANY = 20_000
"""Narrow rows that are looked at."""
NEWEST = 50
"""Messages without a receipt whose deliveries are looked for."""
MOST_TOPICS = 50
_BEHIND_SAGAS = SAGA_QUEUE[:-1] + chr(ord(SAGA_QUEUE[-1]) + 1)
_MESSAGES = f"NOT (queue > '{SAGA_QUEUE}' AND queue < '{_BEHIND_SAGAS}') AND queue <> '{TWOPHASE_QUEUE}'"
"""Queues of messages: a dead delivery in another one is a saga or a two-phase commit."""


class DeadLetters(NamedTuple):
    """Dead letters by reason code, the age of the oldest, and whether there are more than were counted."""

    codes: dict[str, int]
    oldest_seconds: float | None
    more: bool


class Traffic(Operations):
    """Reads over all queues. `order` is that of the relays."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self._order = order

    def waiting(self) -> Steps[list[Waiting]]:
        """The unsent messages of each queue."""
        backlog = yield from BacklogReader(self.names, self._order, most=100_000).backlog()
        return [
            Waiting(text(queue), one.pending, one.waiting, one.dead, one.oldest_pending_seconds)
            for queue, one in sorted(backlog.items())
        ]

    def dead_letters(self) -> Steps[DeadLetters]:
        some = f"SELECT error_code, failed_at FROM {self.delivery} WHERE {dead()} AND {_MESSAGES} LIMIT {MANY}"
        age = f"CASE WHEN failed_at <> {self.dialect.never} THEN {self.dialect.seconds_since('failed_at')} END"
        found = yield Query(f"SELECT error_code, count(*), max({age}) FROM ({some}) d GROUP BY error_code")
        codes = {text(code): int(count) for code, count, _ in found.rows}
        ages = [float(oldest) for _, _, oldest in found.rows if oldest is not None]
        return DeadLetters(codes, max(ages, default=None), more=sum(codes.values()) == MANY)

    def held_keys(self) -> Steps[list[HeldKey]]:
        """Keys that a failed or dead message holds back, among the first of what is ready."""
        some = (
            f"SELECT queue, key_hash, position FROM {self.delivery} WHERE {ready()} AND key_hash IS NOT NULL "
            f"LIMIT {MANY}"
        )
        blocked = f"SELECT d.queue, d.key_hash, {first_before(self.names, self._order)} AS blocker FROM ({some}) d"
        found = yield Query(
            f"SELECT queue, key_hash, count(*), min(blocker) FROM ({blocked}) h WHERE blocker IS NOT NULL "
            f"GROUP BY queue, key_hash ORDER BY 3 DESC LIMIT {SAMPLE}"
        )
        if not found.rows:
            return []
        positions = whole_numbers(sorted({int(row[3]) for row in found.rows}))
        queues, params = _named([text(row[0]) for row in found.rows])
        states = yield Query(
            f"SELECT position, state FROM {self.delivery} WHERE {unsettled()} AND queue IN ({queues}) "
            f"AND lane IN ({ALL_LANES}) AND position IN ({positions})",
            params,
        )
        stored = {int(position): int(state) for position, state in states.rows}
        messages = yield Query(f"SELECT position, id, ordering_key FROM {self.outbox} WHERE position IN ({positions})")
        named = {int(position): (text(identifier), text(key)) for position, identifier, key in messages.rows}
        unknown = ("(unknown)", "")
        return [
            HeldKey(
                text(queue),
                named.get(int(position), unknown)[1],
                int(waiting),
                named.get(int(position), unknown)[0],
                is_dead=stored.get(int(position)) == Stored.DEAD,
            )
            for queue, _, waiting, position in found.rows
        ]

    def stale_leases(self) -> Steps[tuple[int, float]]:
        """How many leases stand past their end, and for how long at most: of messages, and of lanes with messages."""
        some = f"SELECT owner, leased_until FROM {self.delivery} WHERE {ready()} LIMIT {MANY}"
        ended = f"owner <> '' AND leased_until <= {self.now}"
        age = self.dialect.seconds_since("leased_until")
        rows = yield Query(f"SELECT count(*), max({age}) FROM ({some}) d WHERE {ended}")
        waiting = (
            f"EXISTS (SELECT 1 FROM {self.delivery} d WHERE {ready('d')} AND d.queue = l.queue AND d.lane = l.lane)"
        )
        lanes = yield Query(f"SELECT count(*), max({age}) FROM {self.lane} l WHERE {ended} AND {waiting}")
        [[of_rows, rows_age]], [[of_lanes, lanes_age]] = rows.rows, lanes.rows
        return int(of_rows) + int(of_lanes), max(float(rows_age or 0.0), float(lanes_age or 0.0))

    def overdue(self) -> Steps[Overdue]:
        """The oldest of what retention should have removed, among the first rows of each table."""
        inbox, ledger = self.tables["inbox"], self.tables["idempotency"]
        settled = yield from self._oldest("sent_at", f"SELECT sent_at FROM {self.receipt} ORDER BY position")
        marks = yield from self._oldest(
            "received_at",
            f"SELECT received_at FROM {inbox} WHERE consumer <> '{WITNESS}' ORDER BY consumer, message_id",
        )
        expired = f"expires_at <> {self.dialect.never} AND expires_at <= {self.now} AND leased_until <= {self.now}"
        entries = yield from self._oldest(
            "expires_at",
            f"SELECT expires_at FROM (SELECT expires_at, leased_until FROM {ledger} ORDER BY scope, idempotency_key "
            f"LIMIT {SAMPLE}) first_rows WHERE {expired}",
        )
        parts = (yield from Partitions(self.names).existing()) if self.dialect.name == "postgresql" else []
        return Overdue(settled, marks, entries, LEFT_TO_PARTITIONS if parts else 0.0)

    def _oldest(self, moment: str, select: str) -> Steps[float]:
        found = yield Query(
            f"SELECT max({self.dialect.seconds_since(moment)}) FROM ({select} LIMIT {SAMPLE}) first_rows"
        )
        return float(found.rows[0][0] or 0.0)

    def incomplete(self) -> Steps[tuple[list[str], int]]:
        """Ids of the newest messages that have neither delivery nor receipt; and at how many it has looked."""
        columns = "position, id, streamed" if self.dialect.name == "postgresql" else "position, id"
        newest = f"SELECT {columns} FROM {self.outbox} WHERE {_MESSAGES} ORDER BY position DESC LIMIT {SAMPLE}"
        if self.dialect.name == "postgresql":  # what is in the stream needs no delivery
            newest = f"SELECT position, id FROM ({newest}) n WHERE NOT streamed"
        without = f"NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = m.position)"
        looked_at = yield Query(f"SELECT count(*) FROM ({newest}) m")
        open_ones = yield Query(
            f"SELECT m.position, m.id FROM ({newest}) m WHERE {without} ORDER BY m.position DESC LIMIT {NEWEST}"
        )
        ids = {int(position): str(uuid_of(identifier)) for position, identifier in open_ones.rows}
        if ids:
            queues = yield Query(f"SELECT DISTINCT queue FROM {self.lane}")
            listed, params = _named([text(queue) for [queue] in queues.rows])
            found = yield Query(
                f"SELECT position FROM {self.delivery} WHERE {unsettled()} AND queue IN ({listed}) "
                f"AND lane IN ({ALL_LANES}) AND position IN ({whole_numbers(sorted(ids))})",
                params,
            )
            for [position] in found.rows:
                ids.pop(int(position), None)
        if ids:  # what was sent between these statements has its receipt by now
            found = yield Query(
                f"SELECT m.position FROM {self.outbox} m WHERE m.position IN ({whole_numbers(sorted(ids))}) "
                f"AND {without}"
            )
            ids = {int(position): ids[int(position)] for [position] in found.rows}
        return list(ids.values()), int(looked_at.rows[0][0])

    def topics(self) -> Steps[list[str]]:
        """The topics of the newest messages for brokers."""
        newest = f"SELECT topic, queue FROM {self.outbox} WHERE {_MESSAGES} ORDER BY position DESC LIMIT {SAMPLE}"
        found = yield Query(f"SELECT DISTINCT queue, topic FROM ({newest}) m ORDER BY topic")
        topics = [text(topic) for queue, topic in found.rows if not text(queue).startswith(HANDLERS)]
        return list(dict.fromkeys(topics))[:MOST_TOPICS]

    def unfinished_requests(self) -> Steps[tuple[int, float]]:
        """Keyed requests in progress that no run holds and no message has taken over, among the first of the ledger."""
        some = (
            f"SELECT status, leased_until, created_at FROM {self.tables['idempotency']} "
            f"ORDER BY scope, idempotency_key LIMIT {SAMPLE}"
        )
        left = (
            f"status = '{Status.IN_PROGRESS.value}' AND leased_until <= {self.now} "
            f"AND leased_until <> {self.dialect.never}"
        )
        age = self.dialect.seconds_since("leased_until")
        found = yield Query(f"SELECT count(*), max({age}) FROM ({some}) e WHERE {left}")
        [[count, seconds]] = found.rows
        return int(count), float(seconds or 0.0)

    def unsettled_transactions(self) -> Steps[Unsettled]:
        """Two-phase commits that are not settled, those past their deadline."""
        listed = yield from Transactions(self.names).listed(limit=SAMPLE)
        late = [one for one in listed if one.past_deadline]
        stuck = [one for one in listed if one.state is TransactionState.STUCK]
        undecided = [one for one in late if one.state is TransactionState.UNDECIDED]
        rest = [one for one in late if one.state in (TransactionState.COMMITTING, TransactionState.ABORTING)]
        example = next(iter((*stuck, *undecided, *rest)), None)
        return Unsettled(
            stuck=len(stuck),
            undecided=len(undecided),
            open=len(rest),
            oldest_seconds=max((one.age_seconds for one in (*stuck, *undecided, *rest)), default=0.0),
            example=example.id if example else "",
        )

    def uses_two_phase_commit(self) -> Steps[bool]:
        """Whether a log or a participant's mark is here."""
        for query in (
            f"SELECT 1 FROM {self.tables['twophase_scope']} LIMIT 1",
            f"SELECT 1 FROM {self.tables['inbox']} WHERE consumer = '{WITNESS}' LIMIT 1",
        ):
            if (yield Query(query)).rows:
                return True
        return False


def _named(values: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The distinct values as parameters for SQL's IN."""
    params = {f"value_{n}": value for n, value in enumerate(dict.fromkeys(values))}
    return ", ".join(f":{name}" for name in params) or "NULL", params
