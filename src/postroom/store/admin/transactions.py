"""Two-phase commits as operators see them: lists, counts, how their recovery goes, and acts on those left behind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from postroom.rules.naming import TWOPHASE_QUEUE
from postroom.rules.twophase_ids import LAST
from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_state import UNSETTLED, TransactionState, transaction_state
from postroom.store.sql.dialect import text
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.log import COLUMNS, read_row
from postroom.store.twophase.recovery_queue import open_deliveries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Row
    from postroom.store.twophase.log import LogRow

_SETTLED, _UNSETTLED = "settled_at IS NOT NULL", "settled_at IS NULL"
_PLAIN, _PROBLEM = "problem = ''", "problem <> ''"
_WHERE = {
    TransactionState.UNDECIDED: f"{_UNSETTLED} AND {_PLAIN} AND decision = {int(Decision.OPEN)}",
    TransactionState.COMMITTING: f"{_UNSETTLED} AND {_PLAIN} AND decision = {int(Decision.COMMIT)}",
    TransactionState.ABORTING: f"{_UNSETTLED} AND {_PLAIN} AND decision = {int(Decision.ABORT)}",
    TransactionState.STUCK: f"{_UNSETTLED} AND {_PROBLEM}",
    TransactionState.COMMITTED: f"{_SETTLED} AND {_PLAIN} AND decision = {int(Decision.COMMIT)}",
    TransactionState.ABORTED: f"{_SETTLED} AND {_PLAIN} AND decision = {int(Decision.ABORT)}",
    TransactionState.FORGOTTEN: f"{_SETTLED} AND ({_PROBLEM} OR decision = {int(Decision.OPEN)})",
}


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A two-phase commit that is on record."""

    id: str
    state: TransactionState
    decision: Decision
    participants: Mapping[str, str]
    """Name → the id of its branch, by which its database lists it; empty for one that does not prepare."""
    missing: tuple[str, ...]
    """Participants of which nobody knows yet that they have ended as decided."""
    deadline: datetime
    """By the database's clock: until then its coordinator may decide."""
    past_deadline: bool
    decided_at: datetime | None
    """While it is undecided: when it was written."""
    settled_at: datetime | None
    age_seconds: float
    """Since it was decided; while it is undecided, since it was written."""
    problem: str | None
    """Why recovery cannot finish it."""


@dataclass(frozen=True, slots=True)
class TransactionCount:
    """How many two-phase commits are in a state."""

    state: TransactionState
    count: int
    oldest_seconds: float
    """The age of the oldest one."""


@dataclass(frozen=True, slots=True)
class RecoveryDelivery:
    """How a relay's recovery of a transaction goes."""

    attempts: int
    due: datetime | None
    """When it is tried again; None: now."""
    error_code: str | None
    error_message: str | None
    """What the last attempt said."""


class Transactions(Operations):
    """Reads the log for people, and writes what an operator decides."""

    def __init__(self, names: Names) -> None:
        super().__init__(names, TWOPHASE_QUEUE)
        self._log = self.tables["twophase"]
        self._age = self.dialect.seconds_since("decided_at")
        self._columns = f"{COLUMNS}, {self._age}, CASE WHEN deadline_ms <= {self.dialect.now_ms} THEN 1 ELSE 0 END"

    def listed(
        self, states: Collection[TransactionState] = UNSETTLED, limit: int = 50, before: str | None = None
    ) -> Steps[list[ListedTransaction]]:
        """Those in one of the states, latest deadline first, from before an id on."""
        # In these words, the index of what is not settled is used.
        narrow = f"{_UNSETTLED} AND " if UNSETTLED.issuperset(states) else ""
        where = " OR ".join(f"({_WHERE[state]})" for state in sorted(states)) or "1 = 0"
        page = "" if before is None else "AND id < :before "
        found = yield Query(
            f"SELECT {self._columns} FROM {self._log} WHERE {narrow}({where}) {page}ORDER BY id DESC LIMIT :limit",
            {"limit": limit} | ({} if before is None else {"before": before}),
        )
        return [self._read(row) for row in found.rows]

    def find(self, tx: str, *, lock: bool = False) -> Steps[ListedTransaction | None]:
        """One of them; `lock`: until the end of the caller's transaction."""
        suffix = self.dialect.for_update if lock else ""
        found = yield Query(f"SELECT {self._columns} FROM {self._log} WHERE id = :tx{suffix}", {"tx": tx})
        return self._read(found.rows[0]) if found.rows else None

    def counts(self) -> Steps[list[TransactionCount]]:
        """How many are in each state, and how old the oldest is. Reads all of them."""
        found = yield Query(
            f"SELECT decision, CASE WHEN {_SETTLED} THEN 1 ELSE 0 END, CASE WHEN {_PROBLEM} THEN 1 ELSE 0 END, "
            f"count(*), max({self._age}) FROM {self._log} GROUP BY 1, 2, 3"
        )
        ages: dict[TransactionState, list[float]] = {}
        counts: dict[TransactionState, int] = {}
        for decision, settled, problem, count, oldest in found.rows:
            state = transaction_state(Decision(decision), settled=bool(settled), has_problem=bool(problem))
            counts[state] = counts.get(state, 0) + int(count)
            ages.setdefault(state, []).append(max(0.0, float(oldest)))
        return [
            TransactionCount(state, counts[state], round(max(ages[state]), 3))
            for state in TransactionState
            if state in counts
        ]

    def recovery_of(self, tx: str) -> Steps[RecoveryDelivery | None]:
        """The delivery in which relays recover it, if there is one."""
        due = f"CASE WHEN d.due > {self.now} THEN {self.dialect.readable('d.due')} END"
        deliveries = open_deliveries(self, f", {due} AS due, d.position, d.attempts, d.error_code, d.error_message")
        found = yield Query(
            f"SELECT attempts, due, error_code, error_message FROM ({deliveries}) waiting "
            "WHERE tx = :tx ORDER BY position DESC LIMIT 1",
            {"queue": self.queue, "tx": tx},
        )
        if not found.rows:
            return None
        attempts, due_at, code, message = found.rows[0]
        return RecoveryDelivery(int(attempts), self.dialect.read_moment(due_at), code or None, message or None)

    def forget(self, tx: str) -> Steps[None]:
        """Have recovery leave it alone. Its row stays, so that a branch which appears late is still told what to do."""
        yield Query(
            f"UPDATE {self._log} SET settled_at = {self.now}, "
            "problem = CASE problem WHEN '' THEN 'no problem was on record' ELSE problem END "
            f"WHERE id = :tx AND {_UNSETTLED}",
            {"tx": tx},
        )

    def decide(self, tx: str, decision: Decision) -> Steps[None]:
        """Decide one that is open, for recovery to finish it."""
        yield Query(
            f"UPDATE {self._log} SET decision = :decision, decided_at = {self.now}, problem = '', settled_at = NULL "
            f"WHERE id = :tx AND decision = {int(Decision.OPEN)}",
            {"tx": tx, "decision": int(decision)},
        )

    def _read(self, row: Row) -> ListedTransaction:
        *columns, age, past_deadline = row
        read = read_row(columns, self.dialect)
        state = transaction_state(read.decision, settled=read.settled_at is not None, has_problem=bool(read.problem))
        return ListedTransaction(
            id=read.id,
            state=state,
            decision=read.decision,
            participants=read.participants,
            missing=_missing(read) if state in UNSETTLED else (),
            deadline=datetime.fromtimestamp(read.deadline_ms / 1000, UTC),
            past_deadline=bool(past_deadline),
            decided_at=read.decided_at,
            settled_at=read.settled_at,
            age_seconds=round(max(0.0, float(age)), 3),
            problem=text(read.problem) or None,
        )


def _missing(row: LogRow) -> tuple[str, ...]:
    """Those who have a branch, and the last resource until it has decided."""
    is_open = row.decision is Decision.OPEN
    return tuple(sorted(name for name, branch in row.participants.items() if branch and (name != LAST or is_open)))
