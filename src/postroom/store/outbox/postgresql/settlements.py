"""Settlements on PostgreSQL: checked and written in one statement for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.store.ledger.message_outcomes import is_final
from postroom.store.outbox.attempts import COLUMNS, worker_of
from postroom.store.outbox.leases import Claimed, Failure, GivenBack, Lease, Receipt, Rerouted, Settlement
from postroom.store.outbox.postgresql.given import (
    IS_FOUND,
    LEASES,
    deliveries_given,
    found_deliveries,
    given_deliveries,
    held_lanes,
    lanes_given,
    leases_given,
    numbers,
    places_of_leases,
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
from postroom.store.sql.dialect import as_json
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.store.outbox.held import HeldLeases
    from postroom.store.sql.operations import Operations
    from postroom.store.sql.steps import Row, Steps


class _Unwritten(NamedTuple):
    """What a statement did not write."""

    leases: set[Lease]
    changed: bool
    """Whether some of them changed between the look and the write, as by a renewal, and may still hold."""


def _unwritten(claimed: Sequence[Claimed], count: int, found: int, kept: Sequence[Sequence[int]] | None) -> _Unwritten:
    """Of these, the statement has found and written so many; `kept` are the leases that it wrote, if not all."""
    if count == len(claimed):
        return _Unwritten(set(), changed=False)
    return _Unwritten(
        {one.lease for one in claimed} - {(position, token) for position, token in kept or ()}, count < found
    )


def _by_kind(settlements: Sequence[Settlement]) -> dict[type[Settlement], Sequence[Any]]:
    """The settlements of each kind. Nearly always all were sent."""
    types = {type(one) for one in settlements}
    if len(types) == 1:
        return {types.pop(): settlements}
    return {kind: [one for one in settlements if type(one) is kind] for kind in types}


def _answers(receipts: Sequence[Any]) -> dict[str, str]:
    """What brokers said, and the hashes of deduplication: two objects, by position."""
    fields = [(str(one.claimed.position), *receipt_fields(one)[1:]) for one in receipts]
    return {
        "answer": as_json({position: answer for position, answer, _ in fields if answer is not None}),
        "dedup": as_json({position: dedup for position, _, dedup in fields if dedup is not None}),
    }


class PostgreSQLSettlementWriter(SettlementWriter):
    _on_conflict = ""

    def in_transaction(self, settlements: Sequence[Settlement]) -> Steps[Written]:
        """Settle in the caller's transaction, in one statement for each kind unless the ledger must be told too."""
        if any(is_final(one) for one in settlements):
            return (yield from super().in_transaction(settlements))
        writer = _InOpenTransaction(self.sql, self._held, self._ledger_keep)
        return Written((yield from writer.settle(settlements)), {})

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        kinds = _by_kind(settlements)
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
        outcome, _, _ = receipt_fields(receipts[0])
        params: dict[str, Any] = {"outcome": outcome}
        answered = outcome != "sent" or any(one.answer is not None or one.dedup is not None for one in receipts)
        if answered:
            params |= _answers(receipts)
        claimed = [one.claimed for one in receipts]
        try:
            return (yield from self._write_receipts_of(claimed, params, self._on_conflict, answered=answered))
        except Exception as error:
            if self._on_conflict or not is_duplicate_entry(error):
                raise
            replacing = self.sql.dialect.replace_receipt
            return (yield from self._write_receipts_of(claimed, params, replacing, answered=answered))

    def _write_receipts_of(
        self, claimed: Sequence[Claimed], params: Mapping[str, Any], on_conflict: str, *, answered: bool
    ) -> Steps[_Unwritten]:
        """Replace the deliveries that are still held by receipts. Which were, is told only if some were not."""
        sql = self.sql
        # By the position, in an object: to join two tables without an index takes too long, or too much luck.
        objects = ", given AS MATERIALIZED (SELECT :answer::text::jsonb AS answer, :dedup::text::jsonb AS dedup)"
        answer, dedup = (
            f"(SELECT {name} FROM given) ->> w.position::text" if answered else "NULL" for name in ("answer", "dedup")
        )
        statement = f"""
            WITH {LEASES}{objects if answered else ""}, held AS ({held_lanes(sql)}), found AS MATERIALIZED (
                {places_of_leases(sql)}
            ), written AS (
                DELETE FROM {sql.delivery} d WHERE d.ctid = ANY (ARRAY(SELECT place FROM found))
                    AND d.state IS NOT DISTINCT FROM {int(Stored.READY)} AND d.queue IS NOT DISTINCT FROM :queue
                    AND (d.lane <> {NO_LANE}
                        OR d.token = ANY (ARRAY(SELECT token FROM leases)) AND d.leased_until > {sql.now})
                RETURNING d.position, d.lane, d.token, d.attempts
            ), receipts AS (
                INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup)
                SELECT w.position, w.attempts, :outcome::text, {answer}, ({dedup})::bigint FROM written w
                {on_conflict}
            )
            SELECT count(*), (SELECT count(*) FROM found), CASE WHEN count(*) < :expected THEN (
                SELECT array_agg(ARRAY[w.position, coalesce(held.token, w.token)])
                FROM written w LEFT JOIN held ON held.lane = w.lane
            ) END FROM written"""
        given = {"queue": sql.queue, **leases_given(claimed), "expected": len(claimed), **params}
        [[count, found, kept]] = yield from self._run(statement, given)
        return _unwritten(claimed, count, found, kept)

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
        return _unwritten(claimed, count, found, kept)

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

    def __init__(self, sql: Operations, held: HeldLeases, ledger_keep: float) -> None:
        super().__init__(sql, held, ledger_keep)
        self._on_conflict = sql.dialect.replace_receipt

    def _run(self, statement: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        return (yield Query(statement, params)).rows
