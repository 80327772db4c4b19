"""Receipts: end deliveries for good, many in one statement, if their leases hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from postroom.rules.runs import Run, runs
from postroom.store.outbox.leases import Receipt, Settlement
from postroom.store.outbox.settlements import SettlementWriter, receipt_fields
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.store.outbox.held import HeldLeases
    from postroom.store.outbox.leases import Claimed, Lease

OF_LANE = 0
"""In place of the token of a message that has no lease of its own, because its lane has one."""


class Receipts:
    """Inserts receipts and deletes deliveries. MySQL finds scattered ones in its own way."""

    def __init__(self, sql: Operations) -> None:
        self.sql = sql

    def insert(self, receipts: Sequence[Receipt]) -> Steps[None]:
        """Write receipts, over those that exist."""
        alike: dict[tuple[str, int], list[int]] = {}
        answered: list[Receipt] = []
        for one in receipts:
            outcome, answer, dedup = receipt_fields(one)
            if answer is None and dedup is None:
                alike.setdefault((outcome, one.claimed.attempts), []).append(one.claimed.position)
            else:
                answered.append(one)
        for (outcome, attempts), positions in alike.items():
            yield self._insert_alike(positions, outcome, attempts)
        for some in chunks(answered):
            yield self._insert_answered(some)

    def _insert_alike(self, positions: Sequence[int], outcome: str, attempts: int) -> Query:
        sql = self.sql
        return Query(
            f"INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup) "
            f"SELECT these.position, :attempts, :outcome, NULL, NULL FROM {sql.dialect.listed_positions} AS these "
            f"WHERE 1 = 1 {sql.dialect.replace_receipt}",
            {"positions": f"[{whole_numbers(positions)}]", "attempts": attempts, "outcome": outcome},
        )

    def _insert_answered(self, receipts: Sequence[Receipt]) -> Query:
        sql = self.sql
        params: dict[str, object] = {}
        rows: list[str] = []
        for n, receipt in enumerate(receipts):
            outcome, params[f"answer_{n}"], dedup = receipt_fields(receipt)
            place = f"{receipt.claimed.position}, {receipt.claimed.attempts}"
            rows.append(f"({place}, '{outcome}', :answer_{n}, {'NULL' if dedup is None else dedup})")
        return Query(
            f"INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup) VALUES {', '.join(rows)} "
            f"{sql.dialect.replace_receipt}",
            params,
        )

    def delete(self, claimed: Iterable[Claimed]) -> Steps[int]:
        """Delete deliveries; those without a key only while their lease holds. Returns how many were deleted.

        Lanes must be locked and held by the caller.
        """
        leases: dict[Lease, list[int]] = {}
        for one in claimed:
            leases.setdefault((one.lane, OF_LANE if one.ordered else one.token), []).append(one.position)
        deleted = 0
        scattered: dict[int, dict[int, list[int]]] = {}
        for (lane, token), positions in leases.items():
            positions.sort()
            found = runs(positions)
            for run in found:
                deleted += (yield self._delete_run(run, lane, token)).changed
            if not found:
                scattered.setdefault(token, {})[lane] = positions
        for token, lanes in scattered.items():
            deleted += yield from self._delete_scattered(lanes, token)
        return deleted

    def _delete_run(self, run: Run, lane: int, token: int) -> Query:
        sql = self.sql
        return Query(
            f"DELETE FROM {sql.delivery} WHERE {ready()} AND queue = :queue AND lane = :lane "
            f"AND position BETWEEN :first AND :last{self._leased(token)}{sql.dialect.delete_at_most}",
            {"queue": sql.queue, "lane": lane, "token": token, "count": run.size, **run._asdict()},
        )

    def _delete_scattered(self, lanes: Mapping[int, Sequence[int]], token: int) -> Steps[int]:
        """Delete the positions in each of the lanes."""
        sql = self.sql
        deleted = 0
        for lane, positions in lanes.items():
            result = yield Query(
                f"DELETE FROM {sql.delivery} WHERE {ready()} AND queue = :queue AND lane = :lane "
                f"AND position IN (SELECT position FROM {sql.dialect.listed_positions} AS these){self._leased(token)}",
                {"queue": sql.queue, "lane": lane, "positions": f"[{whole_numbers(positions)}]", "token": token},
            )
            deleted += result.changed
        return deleted

    def _leased(self, token: int, of: str = "") -> str:
        """The condition that a row's own lease holds."""
        return "" if token == OF_LANE else f" AND {of}token = :token AND {of}leased_until > {self.sql.now}"


class _LeaseLost(Exception):
    """At least one of the leases does not hold: nothing may be written before it is known which."""


class CountingSettlementWriter(SettlementWriter):
    """Writes receipts without first looking which leases hold, as nearly always all do, and counts what it deletes.

    For databases whose drivers count. Where a lease was lost, it looks which, and writes the others.
    """

    receipts: ClassVar[type[Receipts]] = Receipts

    def __init__(self, sql: Operations, held: HeldLeases, ledger_keep: float) -> None:
        super().__init__(sql, held, ledger_keep)
        self._receipts = self.receipts(sql)

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        try:
            if any(isinstance(one, Receipt) for one in settlements):
                return (yield from self.sql.transaction(self._write_counted, settlements))
        except _LeaseLost:
            pass
        return (yield from super()._settle(settlements))

    def _write_counted(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        """Write all in one transaction: if it fails, and is repeated, no receipt of it is taken for a lost lease."""
        receipts = [one for one in settlements if isinstance(one, Receipt)]
        others = [one for one in settlements if not isinstance(one, Receipt)]
        claimed = [one.claimed for one in receipts]
        lanes = {(one.lane, one.token) for one in claimed if one.ordered}
        held = yield from self._held.lanes(sorted({one.claimed.lane for one in settlements if one.claimed.ordered}))
        if not lanes <= held.keys() or (yield from self._receipts.delete(claimed)) != len(claimed):
            raise _LeaseLost
        yield from self._receipts.insert(receipts)
        return {one.lease for one in (yield from self._write_held(others)).lost} if others else set()
