"""Settlements on PostgreSQL: checked and written in one statement for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from postroom.rules.ordering import NO_LANE
from postroom.store.ledger.message_outcomes import is_final
from postroom.store.outbox.attempts import COLUMNS, worker_of
from postroom.store.outbox.leases import Claimed, Failure, GivenBack, Lease, Receipt, Rerouted, Settlement
from postroom.store.outbox.postgresql.given import (
    IS_GIVEN,
    deliveries_given,
    given_deliveries,
    held_lanes,
    lanes_given,
    numbers,
    texts,
)
from postroom.store.outbox.settlements import (
    SettlementWriter,
    Written,
    claims_after,
    failure_fields,
    receipt_fields,
    rerouted_by_queue,
)
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.store.sql.steps import Row, Steps

RECEIPT_ARRAYS = {"answer": "text", "dedup": "bigint"}


class PostgreSQLSettlementWriter(SettlementWriter):
    def in_transaction(self, settlements: Sequence[Settlement]) -> Steps[Written]:
        """Settle in the caller's transaction, in one statement for each kind unless the ledger must be told too."""
        if any(is_final(one) for one in settlements):
            return (yield from super().in_transaction(settlements))
        writer = _InOpenTransaction(self.sql, self._held, self._ledger_keep)
        return Written((yield from writer.settle(settlements)), {})

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        kinds: dict[type[Settlement], list[Any]] = {}
        for one in settlements:
            kinds.setdefault(type(one), []).append(one)
        lost: set[Lease] = set()
        for kind in get_args(Receipt):
            if kind in kinds:
                lost |= yield from self._settle_receipts(kinds[kind])
        failures = [one for kind in get_args(Failure) for one in kinds.get(kind, ())]
        if failures:
            lost |= yield from self._settle_failures(failures)
        if GivenBack in kinds:
            lost |= yield from self._settle_given_back([one.claimed for one in kinds[GivenBack]], self.sql.queue)
        for queue, claimed in rerouted_by_queue(kinds.get(Rerouted, ())).items():
            lost |= yield from self._settle_given_back(claimed, queue)
        return lost

    def _settle_receipts(self, receipts: Sequence[Any]) -> Steps[set[Lease]]:
        """Write receipts of one kind. Replace one that exists, which only a repair by hand can explain.

        Only at the second try, because looking for a conflict costs every receipt.
        """
        claimed = [one.claimed for one in receipts]
        outcome, _, _ = receipt_fields(receipts[0])
        params: dict[str, Any] = {"outcome": outcome, "answer": None, "dedup": None}
        if outcome != "sent" or any(one.answer is not None or one.dedup is not None for one in receipts):
            _, answers, dedups = zip(*map(receipt_fields, receipts), strict=True)
            params |= {"answer": texts(answers), "dedup": texts(dedups)}
        try:
            return (yield from self._write(self._receipts(""), RECEIPT_ARRAYS, claimed, params))
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            replacing = self._receipts(self.sql.dialect.replace_receipt)
            return (yield from self._write(replacing, RECEIPT_ARRAYS, claimed, params))

    def _receipts(self, on_conflict: str) -> str:
        sql = self.sql
        return f"""
                DELETE FROM {sql.delivery} d USING given WHERE {self._mine()}
                RETURNING d.position, given.token, d.attempts, given.answer, given.dedup
            ), receipts AS (
                INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup)
                SELECT position, attempts, :outcome::text, answer, dedup FROM written
                {on_conflict}"""

    def _settle_failures(self, failures: Sequence[Failure]) -> Steps[set[Lease]]:
        sql = self.sql
        types = {"becomes": "smallint", "delay": "float8", "attempts": "integer", "code": "text", "message": "text"}
        written = f"""
                UPDATE {sql.delivery} d
                SET state = given.becomes, due = {sql.dialect.later("given.delay")},
                    attempts = d.attempts + given.attempts,
                    claims = {claims_after("given.attempts", "given.becomes", "d")},
                    failed_at = {self.failed_at("given.attempts", "given.becomes", "given.code")},
                    error_code = given.code, error_message = given.message,
                    token = 0, owner = '', leased_until = {sql.dialect.never}
                FROM given WHERE {self._mine()}
                RETURNING d.position, given.token, given.state, given.queue, given.lane, given.attempts AS counted,
                    d.attempts, given.code, given.message
            ), attempts AS (
                INSERT INTO {sql.tables["attempt"]} ({COLUMNS})
                SELECT w.position, {sql.now}, w.attempts, coalesce((
                    SELECT {worker_of(sql)} FROM {sql.delivery} d WHERE d.state = w.state AND d.queue = w.queue
                        AND d.lane = w.lane AND d.position = w.position
                ), ''), w.code, w.message
                FROM written w WHERE w.counted > 0 ON CONFLICT DO NOTHING"""
        states, delays, attempts, codes, messages = zip(*map(failure_fields, failures), strict=True)
        params = {
            "becomes": numbers(states),
            "delay": numbers(delays),
            "attempts": numbers(attempts),
            "code": texts(codes),
            "message": texts(messages),
        }
        return (yield from self._write(written, types, [one.claimed for one in failures], params))

    def _settle_given_back(self, claimed: Sequence[Claimed], to: str) -> Steps[set[Lease]]:
        sql = self.sql
        moved = "queue = :to, " if to != sql.queue else ""  # else the row stays where it is: a HOT update
        written = f"""
                UPDATE {sql.delivery} d
                SET {moved}token = 0, owner = '', leased_until = {sql.dialect.never},
                    claims = CASE WHEN d.lane = {NO_LANE} THEN d.claims - 1 ELSE d.claims END
                FROM given WHERE {self._mine()}
                RETURNING d.position, given.token"""
        return (yield from self._write(written, {}, claimed, {"to": to} if moved else {}))

    def _write(
        self, written: str, types: Mapping[str, str], claimed: Sequence[Claimed], params: Mapping[str, Any]
    ) -> Steps[set[Lease]]:
        """Write what is still held; returns the leases that are not. Which were, comes back only if some were not."""
        sql = self.sql
        statement = f"""
            WITH {given_deliveries(**types)}, held AS ({held_lanes(sql)}), written AS ({written}
            )
            SELECT count(*), CASE WHEN count(*) < :expected THEN array_agg(ARRAY[position, token]) END FROM written"""
        [[count, kept]] = yield from self._run(
            statement,
            {
                "queue": sql.queue,
                **deliveries_given(claimed),
                **lanes_given(sorted({(one.lane, one.token) for one in claimed if one.ordered})),
                "expected": len(claimed),
                **params,
            },
        )
        if count == len(claimed):
            return set()
        return {one.lease for one in claimed} - {(position, token) for position, token in kept or ()}

    def _run(self, statement: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        return self.sql.statement(statement, params)

    def _mine(self) -> str:
        """The delivery is the one given, and its lease, or its lane's, still holds."""
        return f"""{IS_GIVEN}
            AND CASE WHEN d.lane = {NO_LANE} THEN d.token = given.token AND d.leased_until > {self.sql.now}
                ELSE (given.lane, given.token) IN (SELECT held.lane, held.token FROM held) END"""


class _InOpenTransaction(PostgreSQLSettlementWriter):
    """Tries nothing twice: the first error ends the caller's transaction."""

    def _receipts(self, on_conflict: str) -> str:
        return super()._receipts(on_conflict or self.sql.dialect.replace_receipt)

    def _run(self, statement: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        return (yield Query(statement, params)).rows
