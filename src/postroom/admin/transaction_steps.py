"""What `Admin` and `AsyncAdmin` do with two-phase commits, written once."""
# ruff: noqa: D102 - `Admin` documents each method

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.admin.pages import one_more
from postroom.errors import InvalidSetting, TransactionActRefused, TransactionNotFound
from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_state import (
    UNSETTLED,
    TransactionState,
    explanation,
    why_not_decided,
    why_not_forgotten,
)
from postroom.store.admin.audit import TRANSACTION_DECIDED, TRANSACTION_FORGOTTEN, AuditEntry, AuditTrail, audit
from postroom.store.admin.transactions import ListedTransaction, RecoveryDelivery, TransactionCount, Transactions

if TYPE_CHECKING:
    from collections.abc import Collection

    from postroom.store.admin.audit import Note
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


@dataclass(frozen=True, slots=True)
class TransactionDetails:
    """Everything about a two-phase commit."""

    transaction: ListedTransaction
    explanation: str
    """How it stands, and what to do about it, in a sentence."""
    recovery: RecoveryDelivery | None
    """How a relay's recovery of it goes; None if none is under way."""
    history: tuple[AuditEntry, ...]
    """What operators did to it, oldest first."""


class TransactionSteps:
    """The operations of an operator on two-phase commits. `Admin` documents each."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rows = Transactions(names)

    def listed(
        self, states: Collection[TransactionState | str] | None, limit: int, before: str | None
    ) -> Steps[tuple[ListedTransaction, ...]]:
        wanted = UNSETTLED if states is None else {_state(state) for state in states}
        return tuple((yield from self._rows.listed(wanted, one_more(limit) - 1, before)))

    def counts(self) -> Steps[tuple[TransactionCount, ...]]:
        return tuple((yield from self._rows.counts()))

    def details(self, tx: str) -> Steps[TransactionDetails]:
        found = yield from self._find(tx)
        told = explanation(
            found.state, missing=found.missing, past_deadline=found.past_deadline, problem=found.problem or ""
        )
        recovery = yield from self._rows.recovery_of(tx)
        history = yield from AuditTrail(self._names).of_transaction(tx)
        return TransactionDetails(found, told, recovery, tuple(history))

    def forget(self, tx: str, note: Note) -> Steps[None]:
        yield from self._rows.transaction(self._forget, tx, note)

    def _forget(self, tx: str, note: Note) -> Steps[None]:
        found = yield from self._find(tx, lock=True)
        refusal = why_not_forgotten(found.state, past_deadline=found.past_deadline)
        if refusal is not None:
            raise TransactionActRefused(f"cannot forget transaction {tx}: {refusal}")
        yield from self._rows.forget(tx)
        yield from audit(self._names, TRANSACTION_FORGOTTEN, note, [(None, tx, _facts(found))])

    def decide(self, tx: str, decision: Decision | str, note: Note) -> Steps[None]:
        yield from self._rows.transaction(self._decide, tx, _decision(decision), note)

    def _decide(self, tx: str, decision: Decision, note: Note) -> Steps[None]:
        found = yield from self._find(tx, lock=True)
        refusal = why_not_decided(found.decision, past_deadline=found.past_deadline)
        if refusal is not None:
            raise TransactionActRefused(f"cannot decide transaction {tx}: {refusal}")
        yield from self._rows.decide(tx, decision)
        details = {**_facts(found), "decision": decision.name.lower()}
        yield from audit(self._names, TRANSACTION_DECIDED, note, [(None, tx, details)])

    def _find(self, tx: str, *, lock: bool = False) -> Steps[ListedTransaction]:
        found = yield from self._rows.find(tx, lock=lock)
        if found is None:
            raise TransactionNotFound(
                f"there is no two-phase commit {tx!r} on record: check the id, as `postroom transactions list` shows "
                "it, and the database, which must be the log's. One that was never decided is not on record, and a "
                "settled one may have been removed by retention"
            )
        return found


def _facts(found: ListedTransaction) -> dict[str, Any]:
    return {
        "state": found.state.value,
        "decision": found.decision.name.lower(),
        "participants": sorted(found.participants),
        "problem": found.problem,
    }


def _state(state: TransactionState | str) -> TransactionState:
    try:
        return TransactionState(state)
    except ValueError:
        raise InvalidSetting(f"state = {state!r} is not valid: use {', '.join(TransactionState)}") from None


_DECISIONS = {"commit": Decision.COMMIT, "abort": Decision.ABORT}


def _decision(decision: Decision | str) -> Decision:
    for name, found in _DECISIONS.items():
        if decision in {name, found}:
            return found
    raise InvalidSetting(f"decision = {decision!r} is not valid: use {', '.join(_DECISIONS)}")
