"""Settlements on PostgreSQL: checked and written in one statement for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from postroom.rules.ordering import NO_LANE
from postroom.store.ledger.message_outcomes import is_final
from postroom.store.outbox.attempts import COLUMNS, worker_of
from postroom.store.outbox.leases import Claimed, Failure, GivenBack, Lease, Receipt, Rerouted, Settlement
from postroom.store.outbox.postgresql.given import (
    IS_FOUND,
    deliveries_given,
    found_deliveries,
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


class _Unwritten(NamedTuple):
    """What a statement did not write."""

    leases: set[Lease]
    changed: bool
    """Whether some of them changed between the look and the write, as by a renewal, and may still hold."""


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
        unwritten: list[_Unwritten] = []
        for receipts in filter(None, (kinds.get(kind) for kind in get_args(Receipt))):
            unwritten.append((yield from self._settle_receipts(receipts)))  # noqa: PERF401 - it yields
        failures = [one for kind in get_args(Failure) for one in kinds.get(kind, ())]
        if failures:
            unwritten.append((yield from self._settle_failures(failures)))
        if GivenBack in kinds:
            given_back = [one.claimed for one in kinds[GivenBack]]
            unwritten.append((yield from self._settle_given_back(given_back, self.sql.queue)))
        for queue, claimed in rerouted_by_queue(kinds.get(Rerouted, ())).items():
            unwritten.append((yield from self._settle_given_back(claimed, queue)))
        lost = set[Lease]().union(*(some.leases for some in unwritten))
        if any(some.changed for some in unwritten):
            return (yield from self._settle([one for one in settlements if one.claimed.lease in lost]))
        return lost

    def _settle_receipts(self, receipts: Sequence[Any]) -> Steps[_Unwritten]:
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
                DELETE FROM {sql.delivery} d USING found WHERE {self._still_mine()}
                RETURNING d.position, found.token, d.attempts, found.answer, found.dedup
            ), receipts AS (
                INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup)
                SELECT position, attempts, :outcome::text, answer, dedup FROM written
                {on_conflict}"""

    def _settle_failures(self, failures: Sequence[Failure]) -> Steps[_Unwritten]:
        sql = self.sql
        types = {"becomes": "smallint", "delay": "float8", "attempts": "integer", "code": "text", "message": "text"}
        written = f"""
                UPDATE {sql.delivery} d
                SET state = found.becomes, due = {sql.dialect.later("found.delay")},
                    attempts = d.attempts + found.attempts,
                    claims = {claims_after("found.attempts", "found.becomes", "d")},
                    failed_at = {self.failed_at("found.attempts", "found.becomes", "found.code")},
                    error_code = found.code, error_message = found.message,
                    token = 0, owner = '', leased_until = {sql.dialect.never}
                FROM found WHERE {self._still_mine()}
                RETURNING d.position, found.token, found.state, found.queue, found.lane, found.attempts AS counted,
                    d.attempts, found.code, found.message
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

    def _settle_given_back(self, claimed: Sequence[Claimed], to: str) -> Steps[_Unwritten]:
        sql = self.sql
        moved = "queue = :to, " if to != sql.queue else ""  # else the row stays where it is: a HOT update
        written = f"""
                UPDATE {sql.delivery} d
                SET {moved}token = 0, owner = '', leased_until = {sql.dialect.never},
                    claims = CASE WHEN d.lane = {NO_LANE} THEN d.claims - 1 ELSE d.claims END
                FROM found WHERE {self._still_mine()}
                RETURNING d.position, found.token"""
        return (yield from self._write(written, {}, claimed, {"to": to} if moved else {}))

    def _write(
        self, written: str, types: Mapping[str, str], claimed: Sequence[Claimed], params: Mapping[str, Any]
    ) -> Steps[_Unwritten]:
        """Write what is still held; returns the leases that are not. Which were, comes back only if some were not."""
        sql = self.sql
        statement = f"""
            WITH {given_deliveries(**types)}, held AS ({held_lanes(sql)}), found AS MATERIALIZED (
                {found_deliveries(sql, self._mine())}
            ), written AS ({written}
            )
            SELECT count(*), (SELECT count(*) FROM found),
                CASE WHEN count(*) < :expected THEN array_agg(ARRAY[position, token]) END FROM written"""
        [[count, found, kept]] = yield from self._run(
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
            return _Unwritten(set(), changed=False)
        leases = {one.lease for one in claimed} - {(position, token) for position, token in kept or ()}
        return _Unwritten(leases, changed=count < found)

    def _run(self, statement: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        return self.sql.statement(statement, params)

    def _mine(self) -> str:
        """The lease of a given delivery, or its lane's, holds."""
        return f"""CASE WHEN d.lane = {NO_LANE} THEN d.token = given.token AND d.leased_until > {self.sql.now}
                ELSE (given.lane, given.token) IN (SELECT held.lane, held.token FROM held) END"""

    def _still_mine(self) -> str:
        """It is one that was found, and its lease still holds; a lane's does, because it is locked."""
        lease = f"d.token = found.token AND d.leased_until > {self.sql.now}"
        return f"""{IS_FOUND} AND (d.lane <> {NO_LANE} OR {lease})"""


class _InOpenTransaction(PostgreSQLSettlementWriter):
    """Tries nothing twice: the first error ends the caller's transaction."""

    def _receipts(self, on_conflict: str) -> str:
        return super()._receipts(on_conflict or self.sql.dialect.replace_receipt)

    def _run(self, statement: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        return (yield Query(statement, params)).rows
