"""Audit conflicts: a worker wanted to settle a message whose lease it had lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.rules.lifecycle import State, Stored, status
from postroom.store.admin.audit import Note, audit
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.states import unsettled
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.operations import Operations


@dataclass(frozen=True, slots=True)
class LostLease:
    """What a worker found in place of a lease it had lost, for the conflict's audit record."""

    claimed: Claimed
    status: str
    owner: str
    token: int


class Conflicts:
    """Conflicts on the deliveries of one queue: leases that a worker lost before it could settle."""

    def __init__(self, sql: Operations) -> None:
        self._sql = sql
        self._queue = {"queue": sql.queue}

    def record(self, worker: str, lost: Sequence[Claimed]) -> Steps[list[LostLease]]:
        """Write an audit entry for each lost lease, with what the worker found instead."""
        if not lost:
            return []
        return (yield from self._sql.transaction(self._find_and_audit, worker, lost))

    def _find_and_audit(self, worker: str, lost: Sequence[Claimed]) -> Steps[list[LostLease]]:
        rows = yield from self._rows_of(lost)
        receipts = yield from self._receipts_of(lost)
        lanes = yield from self._lanes_of(lost)
        found = [_found(one, rows.get(one.position), receipts.get(one.position), lanes.get(one.lane)) for one in lost]
        entries = [(one.claimed.position, str(one.claimed.message.id), _details(one)) for one in found]
        yield from audit(self._sql.names, "conflict", Note(worker), entries)
        return found

    def _rows_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, Row]]:
        sql = self._sql
        result = yield Query(
            f"SELECT position, state, due <= {sql.now}, leased_until > {sql.now}, owner, token FROM {sql.delivery} "
            f"WHERE {unsettled()} AND queue = :queue AND {sql.places(lost)}",
            self._queue,
        )
        return {row[0]: row for row in result.rows}

    def _receipts_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, str]]:
        positions = whole_numbers([one.position for one in lost])
        result = yield Query(f"SELECT position, outcome FROM {self._sql.receipt} WHERE position IN ({positions})")
        return dict(result.rows)

    def _lanes_of(self, lost: Sequence[Claimed]) -> Steps[dict[int, Row]]:
        sql = self._sql
        numbers = whole_numbers(sorted({one.lane for one in lost}))
        result = yield Query(
            f"SELECT lane, leased_until > {sql.now}, owner, token FROM {sql.lane} "
            f"WHERE queue = :queue AND lane IN ({numbers})",
            self._queue,
        )
        return {row[0]: row for row in result.rows}


def _details(found: LostLease) -> dict[str, Any]:
    return {"status": found.status, "owner": found.owner, "same_claim": found.token == found.claimed.token}


def _found(claimed: Claimed, row: Row | None, receipt: str | None, lane: Row | None) -> LostLease:
    if row is None:
        return LostLease(claimed, receipt or "removed", "", 0)
    _, stored, due_passed, leased, owner, token = row
    if claimed.ordered and lane is not None:
        _, leased, owner, token = lane
    state: State = status(Stored(stored), due_passed=bool(due_passed), leased=bool(leased))
    return LostLease(claimed, state.value, owner, token)
