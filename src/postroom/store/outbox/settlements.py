"""Settlements: write what became of claimed messages, but only while the lease holds."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.failures import CODE_LENGTH, Reason, cut
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.rules.replay import Verdict
from postroom.store.ledger.confirmations import Confirmations
from postroom.store.ledger.message_outcomes import confirmation_of, intent_of, is_final
from postroom.store.outbox.attempts import record_failed
from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    Failure,
    GivenBack,
    Lease,
    Postponed,
    Receipt,
    Rerouted,
    Retry,
    Sent,
    Settlement,
)
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.states import ready, written_by
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.store.outbox.held import HeldLeases

ANSWER_LENGTH = 4000


class Written(NamedTuple):
    """The result of writing settlements."""

    lost: list[Claimed]
    """Messages whose lease was lost: nothing was written for them."""
    instead: dict[Lease, Settlement]
    """What was written in place of a settlement because the ledger knew better, by lease."""


class SettlementWriter:
    """Checks which leases hold, then writes. PostgreSQL does both in one statement for each kind of settlement."""

    def __init__(self, sql: Operations, held: HeldLeases, ledger_keep: float) -> None:
        """`ledger_keep`: how many seconds the ledger keeps the outcomes of messages that belong to its entries."""
        self.sql = sql
        self._held = held
        self._ledger_keep = ledger_keep

    def settle(self, settlements: Sequence[Settlement]) -> Steps[list[Claimed]]:
        """Write the settlements whose lease holds; returns the messages whose lease was lost.

        Nothing is written for a lost one: another worker has the message, or will.
        """
        return (yield from self.write(settlements)).lost

    def write(self, settlements: Sequence[Settlement]) -> Steps[Written]:
        """`settle`, and also return what was written differently because the ledger knew better."""
        in_order = sorted(settlements, key=attrgetter("claimed.position"))
        final = [one for one in in_order if one.claimed.message.headers and is_final(one)]  # without a call for most
        others = [one for one in in_order if not is_final(one)] if final else in_order
        written = (yield from self.sql.transaction(self._write_held, final)) if final else Written([], {})
        lost = (yield from self._settle(others)) if others else set()
        if not lost:
            return written
        lost |= {one.lease for one in written.lost}
        return Written([one.claimed for one in in_order if one.claimed.lease in lost], written.instead)

    def in_transaction(self, settlements: Sequence[Settlement]) -> Steps[Written]:
        """Settle deliveries of this queue in the transaction that is open on the caller's connection.

        The settlements commit or roll back with the caller's own writes; nothing is begun, committed or retried here.
        Run these steps with `run` or `arun` of `store.sql.steps`. A delivery is settled only while its token holds its
        lease, or its lane's. If it is `lost`, nothing is written for it: another worker has it, or will, and the caller
        should roll back. A delivery that belongs to a ledger entry also records its outcome there, unless the ledger
        has a better one: `instead` says what was written.

        Until the transaction ends, nobody else can claim these deliveries or take their lanes, even if the lease ends
        meanwhile; workers in those lanes wait, so settle last, then commit. If it raises, the database has refused a
        statement, and the transaction must be rolled back.
        """
        sql = self.sql
        if not settlements:
            return Written([], {})
        if not sql.dialect.for_update:
            # Without row locks, a lease can change after it was read, unless this transaction has the write lock.
            yield Query(f"UPDATE {sql.lane} SET token = token WHERE queue = :queue AND 1 = 0", {"queue": sql.queue})
        return (yield from self._write_held(sorted(settlements, key=attrgetter("claimed.position"))))

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        """Write the settlements that are held; returns the leases of the others."""
        written = yield from self.sql.transaction(self._write_held, settlements)
        return {one.lease for one in written.lost}

    def _write_held(self, settlements: Sequence[Settlement]) -> Steps[Written]:
        """Lock what is still held, and write it. The ledger comes first: what it holds is the truth."""
        held = yield from self._held.of([settlement.claimed for settlement in settlements])
        mine = [settlement for settlement in settlements if settlement.claimed.lease in held]
        instead = yield from self._confirm([one for one in mine if is_final(one)])
        yield from self._write_all([instead.get(one.claimed.lease, one) for one in mine])
        return Written([one.claimed for one in settlements if one.claimed.lease not in held], instead)

    def _confirm(self, final: Sequence[Settlement]) -> Steps[dict[Lease, Settlement]]:
        """Record the outcomes in the ledger; returns what to write in place of a settlement, by lease."""
        if not final:
            return {}
        verdicts = yield from Confirmations(self.sql.names).confirm(
            [confirmation_of(one) for one in final], self._ledger_keep
        )
        in_line = [_in_line(one, verdict) for one, verdict in zip(final, verdicts, strict=True)]
        return {new.claimed.lease: new for old, new in zip(final, in_line, strict=True) if new is not old}

    def foresee(self, claimed: Sequence[Claimed]) -> Steps[list[Verdict]]:
        """What the ledger says about messages that belong to an entry, before they are sent."""
        return (yield from Confirmations(self.sql.names).foresee([intent_of(one) for one in claimed]))

    def _write_all(self, mine: Sequence[Settlement]) -> Steps[None]:
        for receipts in chunks([one for one in mine if isinstance(one, Receipt)]):
            yield from self._write_receipts(receipts)
        yield from self._write_failures([one for one in mine if isinstance(one, Failure)])
        yield from self._give_back([one.claimed for one in mine if isinstance(one, GivenBack)])
        for queue, claimed in rerouted_by_queue(mine).items():
            yield from self._give_back(claimed, queue)

    def _write_receipts(self, receipts: Sequence[Receipt]) -> Steps[None]:
        sql = self.sql
        params: dict[str, object] = {}
        for n, receipt in enumerate(receipts):
            outcome, answer, dedup = receipt_fields(receipt)
            params |= {f"outcome_{n}": outcome, f"answer_{n}": answer, f"dedup_{n}": dedup}
        values = ", ".join(
            f"({receipt.claimed.position}, {receipt.claimed.attempts}, :outcome_{n}, :answer_{n}, :dedup_{n})"
            for n, receipt in enumerate(receipts)
        )
        yield Query(
            f"INSERT INTO {sql.receipt} (position, attempts, outcome, answer, dedup) VALUES {values} "
            f"{sql.dialect.replace_receipt}",
            params,
        )
        source, these = sql.only_deliveries(receipt.claimed for receipt in receipts)
        yield Query(
            f"{sql.dialect.delete} FROM {source} WHERE {ready('d')} AND d.queue = :queue AND {these}",
            {"queue": sql.queue},
        )

    def _write_failures(self, failures: Sequence[Failure]) -> Steps[None]:
        """One statement for all that failed alike, as they do when a broker is down."""
        sql = self.sql
        alike: dict[FailureFields, list[Claimed]] = {}
        for failure in failures:
            alike.setdefault(failure_fields(failure), []).append(failure.claimed)
        for fields, claimed in alike.items():
            if fields.attempts:
                yield record_failed(sql, claimed, fields.code, fields.message)
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET state = :becomes, due = {sql.dialect.later(':delay')}, "
                f"attempts = attempts + :attempts, claims = {claims_after(str(fields.attempts), str(fields.becomes))}, "
                # PostgreSQL refuses a parameter that stands for values of two types.
                f"failed_at = {self.failed_at(str(fields.attempts), str(fields.becomes), ':same_code')}, "
                "error_code = :code, "
                f"error_message = :message, token = 0, owner = '', leased_until = {sql.dialect.never} "
                f"WHERE {ready()} AND queue = :queue AND {sql.places(claimed)}",
                {"queue": sql.queue, **fields._asdict(), "same_code": fields.code},
            )

    def failed_at(self, attempts: str, becomes: str, code: str) -> str:
        """Since when it has failed; if it waits for its topic, since it first did."""
        still = f"error_code = {code} AND {attempts} = 0 AND {becomes} = {int(Stored.RETRY)}"
        return f"CASE WHEN {still} THEN failed_at ELSE {self.sql.now} END"

    def _give_back(self, claimed: Sequence[Claimed], to: str | None = None) -> Steps[None]:
        """End the leases; `to` moves the deliveries to another queue."""
        sql = self.sql
        if claimed:
            moved = "queue = :to, " if to else ""
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET {moved}token = 0, owner = '', leased_until = {sql.dialect.never}, "
                f"claims = CASE WHEN lane = {NO_LANE} THEN claims - 1 ELSE claims END "
                f"WHERE {ready()} AND queue = :queue AND {sql.places(claimed)}",
                {"queue": sql.queue, "to": to},
            )


def claims_after(attempts: str, becomes: str, delivery: str = "") -> str:
    """The claims of a delivery that failed. If it was not even tried, this claim does not count, but others do."""
    of = f"{delivery}." if delivery else ""
    not_tried = f"{attempts} = 0 AND {becomes} = {int(Stored.RETRY)} AND {of}lane = {NO_LANE}"
    return f"CASE WHEN {not_tried} THEN {of}claims - 1 ELSE 0 END"


def _in_line(settlement: Settlement, verdict: Verdict) -> Settlement:
    """The settlement to write, given what the ledger says."""
    if verdict is Verdict.OTHER_DIGEST:
        return ledger_conflict(settlement.claimed)
    if verdict is Verdict.ALREADY_SUCCEEDED and isinstance(settlement, Dead | Expired):
        return Duplicate(settlement.claimed)
    return settlement


def ledger_conflict(claimed: Claimed) -> Dead:
    """The settlement of a message whose key belongs to another request in the ledger."""
    problem = "the ledger holds another request for its idempotency key"
    return Dead(claimed, Reason.IDEMPOTENCY_CONFLICT, problem, attempted=False)


def receipt_fields(receipt: Receipt) -> tuple[str, str | None, int | None]:
    """Outcome, the broker's answer, and the hash by which deduplication finds the receipt."""
    match receipt:
        case Sent():
            return "sent", None if receipt.answer is None else cut(receipt.answer, ANSWER_LENGTH), receipt.dedup
        case Duplicate():
            return "duplicate", None if receipt.answer is None else cut(receipt.answer, ANSWER_LENGTH), None
        case Expired():
            return "expired", None, None


def rerouted_by_queue(settlements: Iterable[Settlement]) -> dict[str, list[Claimed]]:
    """What moves to other queues, by queue."""
    queues: dict[str, list[Claimed]] = {}
    for one in settlements:
        if isinstance(one, Rerouted):
            queues.setdefault(one.queue, []).append(one.claimed)
    return queues


class FailureFields(NamedTuple):
    """What a failure writes: stored state, seconds until due, attempts to add, and the error, cut to fit."""

    becomes: int
    delay: float
    attempts: int
    code: str
    message: str


def failure_fields(failure: Failure) -> FailureFields:
    error = cut(failure.code, CODE_LENGTH), cut(failure.message)
    becomes = int(written_by(failure.transition))
    match failure:
        case Retry():
            return FailureFields(becomes, float(failure.delay), 1, *error)
        case Postponed():
            return FailureFields(becomes, float(failure.delay), 0, *error)
        case Dead():
            return FailureFields(becomes, 0.0, int(failure.attempted), *error)
