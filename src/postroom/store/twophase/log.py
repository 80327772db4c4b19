"""The log of two-phase commits: one row decides a transaction for all of its participants.

Abort is presumed: a coordinator writes no row but its decision to commit, and that only before the deadline by this
database's clock. So once the deadline has passed, recovery may write an abort, and whichever row is first decides.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from postroom.errors import PostroomError
from postroom.rules.failures import cut
from postroom.rules.twophase_plan import Decision
from postroom.store.sql.db_errors import is_duplicate_entry, is_lock_timeout
from postroom.store.sql.dialect import as_json, listed, text
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.lock_waits import waiting_briefly

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from postroom.store.sql.dialect import Dialect
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Row

T = TypeVar("T")

LONGEST_PROBLEM = 512
COLUMNS = "id, decision, participants, deadline_ms, decided_at, settled_at, problem"
_DURABLY = (
    "set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)"
)
"""Keeps the decision from being lost in a crash after others have acted on it, however the holder's session is set."""


class StillDeciding(PostroomError):
    """A transaction that has not committed yet holds the row: its coordinator is deciding. Look again later."""


class LogRow(NamedTuple):
    """What is on record about a transaction."""

    id: str
    decision: Decision
    participants: Mapping[str, str]
    """Name → the id of its branch; empty for an abort that recovery wrote: it knows only what it can list."""
    deadline_ms: int
    """In milliseconds of the log's clock."""
    decided_at: datetime | None
    """While it is open: when it was written."""
    settled_at: datetime | None
    """When all participants had done what was decided, as far as the log can know them."""
    problem: str
    """Why recovery cannot settle it."""


class TwoPhaseLog(Operations):
    """Reads and writes the log. Each operation commits by itself, but for `decide` and `decide_open`."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._durably = _DURABLY if names.dialect == "postgresql" else "1"
        self._log, self._scope = self.tables["twophase"], self.tables["twophase_scope"]

    def scope(self) -> Steps[str]:
        """What the ids of this log's branches begin with: 8 hexadecimal digits, made at the first use."""
        select = f"SELECT scope FROM {self._scope} WHERE id = 1"
        found = yield Query(select)
        if not found.rows:
            insert = self.dialect.insert_missing(self._scope, "id, scope", "(1, :scope)")
            yield from self.statement(insert, {"scope": secrets.token_hex(4)})
            found = yield Query(select)  # another may have been first
        return text(found.rows[0][0])

    def clock(self) -> Steps[int]:
        """The time in milliseconds, by the clock that all deadlines are measured with."""
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        return int(found.rows[0][0])

    def decide(
        self, tx: str, participants: Mapping[str, str], deadline_ms: int, only_if: Query | None = None
    ) -> Steps[bool]:
        """Decide to commit, unless the deadline has passed or recovery has decided to abort; returns whether it did.

        `only_if` is a condition in SQL, with its parameters: without it, nothing is decided.

        Run it as the last statement of the holder's transaction, and commit only if it returns True; or alone, where it
        commits by itself. If it raises, or the answer to that COMMIT is lost, `resolve` tells what was decided.

        It is never run again by itself: the database may have undone the whole transaction of the holder.
        """
        condition, more = _condition(only_if)
        params = {"tx": tx, "participants": as_json(participants), "deadline": deadline_ms, **more}
        if self.dialect.name == "mysql":
            return (yield from self._decide_on_mysql(condition, params))
        decided = yield Query(
            f"INSERT INTO {self._log} (id, decision, participants, deadline_ms) "
            f"SELECT :tx, {int(Decision.COMMIT)}, :participants, CAST(:deadline AS BIGINT) "
            f"WHERE {self.dialect.now_ms} < CAST(:deadline AS BIGINT){condition} "
            f"ON CONFLICT DO NOTHING RETURNING {self._durably}",
            params,
        )
        return bool(decided.rows)

    def _decide_on_mysql(self, condition: str, params: Mapping[str, object]) -> Steps[bool]:
        try:
            yield Query(
                f"INSERT INTO {self._log} (id, decision, participants, deadline_ms) "
                f"SELECT :tx, {int(Decision.COMMIT)}, :participants, :deadline FROM dual "
                f"WHERE {self.dialect.now_ms} < :deadline{condition}",
                params,
            )
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            return False
        found = yield Query(
            f"SELECT 1 FROM {self._log} WHERE id = :tx AND decision = {int(Decision.COMMIT)}", {"tx": params["tx"]}
        )
        return bool(found.rows)

    def open(self, tx: str, participants: Mapping[str, str], deadline_ms: int) -> Steps[None]:
        """Put a transaction on record before it is decided, for recovery to know participants that it cannot ask."""
        yield Query(
            f"INSERT INTO {self._log} (id, decision, participants, deadline_ms) "
            f"VALUES (:tx, {int(Decision.OPEN)}, :participants, :deadline)",
            {"tx": tx, "participants": as_json(participants), "deadline": deadline_ms},
        )

    def decide_open(self, tx: str, decision: Decision, only_if: Query | None = None) -> Steps[bool]:
        """Decide an open transaction; returns whether this is what the log says now. May be repeated.

        As `decide`, in the holder's transaction or alone, and with the same meaning of lost answers. The deadline does
        not matter: until somebody decides, the row stays open.
        """
        condition, more = _condition(only_if)
        yield Query(
            f"UPDATE {self._log} SET decision = :decision, decided_at = {self.now} "
            f"WHERE id = :tx AND decision = {int(Decision.OPEN)}{condition}",
            {"tx": tx, "decision": int(decision), **more},
        )
        return (yield from self._decision(tx)) is decision

    def resolve(self, tx: str, deadline_ms: int) -> Steps[Decision]:
        """Decide to abort if nothing is on record; returns what is then. For a transaction past its deadline.

        `Decision.OPEN` comes back as it is. Raises `StillDeciding` after a second of waiting for one who decides.
        """
        return (yield from self._unless_deciding(tx, lambda: self._resolve(tx, deadline_ms)))

    def _resolve(self, tx: str, deadline_ms: int) -> Steps[Decision]:
        yield Query(
            self.dialect.insert_missing(
                self._log,
                "id, decision, participants, deadline_ms, settled_at",
                f"(:tx, {int(Decision.ABORT)}, '{{}}', :deadline, {self.now})",
            ),
            {"tx": tx, "deadline": deadline_ms},
        )
        decision = yield from self._decision(tx)
        return Decision.ABORT if decision is None else decision

    def resolve_open(self, tx: str, decision: Decision) -> Steps[Decision]:
        """Decide an open transaction as recovery does; returns what is on record then. Raises `StillDeciding`."""
        return (yield from self._unless_deciding(tx, lambda: self._resolve_open(tx, decision)))

    def _resolve_open(self, tx: str, decision: Decision) -> Steps[Decision]:
        if (yield from self.decide_open(tx, decision)):
            return decision
        recorded = yield from self._decision(tx)
        return Decision.ABORT if recorded is None else recorded

    def rows(self, txs: Collection[str]) -> Steps[dict[str, LogRow]]:
        """What is on record about these transactions, by id.

        Recovery asks after it has listed their branches: read before, a decision could have been made in between.
        """
        found: dict[str, LogRow] = {}
        for chunk in chunks(sorted(set(txs))):
            params = {f"id_{n}": tx for n, tx in enumerate(chunk)}
            result = yield Query(
                f"SELECT {COLUMNS} FROM {self._log} WHERE id IN ({listed(f':{name}' for name in params)})", params
            )
            found |= {row.id: row for row in self._read(result.rows)}
        return found

    def unsettled(self, limit: int, *, after: str = "", seconds: float = 0) -> Steps[list[LogRow]]:
        """Transactions that are not settled, those with the earliest deadlines first.

        `after`: only those behind this id. `seconds`: only those decided so long ago, so that their coordinators have
        had the time to settle them.
        """
        found = yield Query(
            f"SELECT {COLUMNS} FROM {self._log} WHERE settled_at IS NULL AND id > :after "
            f"AND decided_at <= {self.dialect.later(':ago')} ORDER BY id LIMIT :limit",
            {"after": after, "ago": -float(seconds), "limit": limit},
        )
        return list(self._read(found.rows))

    def settle(self, *txs: str) -> Steps[None]:
        """Put on record that all participants have done what was decided. May be repeated."""
        for chunk in chunks(sorted(set(txs))):
            params = {f"id_{n}": tx for n, tx in enumerate(chunk)}
            yield from self.statement(
                f"UPDATE {self._log} SET settled_at = {self.now}, problem = '' "
                f"WHERE id IN ({listed(f':{name}' for name in params)}) "
                f"AND decision <> {int(Decision.OPEN)} AND settled_at IS NULL",
                params,
            )

    def note_problem(self, tx: str, problem: str) -> Steps[None]:
        """Put on record why the transaction cannot be settled. Until it is, it counts as not settled."""
        yield from self.statement(
            f"UPDATE {self._log} SET problem = :problem, settled_at = NULL WHERE id = :tx",
            {"tx": tx, "problem": cut(problem, LONGEST_PROBLEM)},
        )

    def _unless_deciding(self, tx: str, operation: Callable[[], Steps[T]]) -> Steps[T]:
        try:
            return (yield from waiting_briefly(self, operation))
        except Exception as error:
            if not is_lock_timeout(error):
                raise
            raise StillDeciding(f"transaction {tx} is being decided: look again later") from error

    def _decision(self, tx: str) -> Steps[Decision | None]:
        found = yield Query(f"SELECT decision FROM {self._log} WHERE id = :tx", {"tx": tx})
        return Decision(found.rows[0][0]) if found.rows else None

    def _read(self, rows: Iterable[Row]) -> Iterable[LogRow]:
        """What can be read. A row that somebody has spoilt is left out, and `resolve` still says what it decides."""
        return (read_row(row, self.dialect) for row in rows if participants_of(row) is not None)


def _condition(only_if: Query | None) -> tuple[str, Mapping[str, Any]]:
    return ("", {}) if only_if is None else (f" AND {only_if.text}", only_if.params)


def participants_of(row: Sequence[Any]) -> dict[str, str] | None:
    """The participants of a row, and their branches; None if they cannot be read."""
    try:
        return _decoded(text(row[2]))
    except msgspec.DecodeError:
        return None


def read_row(row: Sequence[Any], dialect: Dialect) -> LogRow:
    """What `COLUMNS` says."""
    id_, decision, _, deadline_ms, decided_at, settled_at, problem = row
    return LogRow(
        id=text(id_),
        decision=Decision(decision),
        participants=participants_of(row) or {},
        deadline_ms=int(deadline_ms),
        decided_at=dialect.read_moment(decided_at),
        settled_at=dialect.read_moment(settled_at),
        problem=text(problem),
    )


_decoded = msgspec.json.Decoder(dict[str, str]).decode
