"""The state of a two-phase commit that people see. It is never stored: it follows from its row in the log."""

from collections.abc import Collection
from enum import StrEnum
from typing import assert_never

from postroom.rules.twophase_plan import Decision


class TransactionState(StrEnum):
    """What a two-phase commit is, in the words that every view, command and page uses."""

    UNDECIDED = "undecided"
    """On record, but not decided. Most transactions are not on record before they are."""
    COMMITTING = "committing"
    """Commit is decided, and not all participants have confirmed it."""
    ABORTING = "aborting"
    """Abort is decided, and not all participants have confirmed it."""
    STUCK = "stuck"
    """Needs an operator, who finds the reason in it."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    FORGOTTEN = "forgotten"
    """An operator has said that recovery need not finish it."""


UNSETTLED = frozenset(
    {TransactionState.UNDECIDED, TransactionState.COMMITTING, TransactionState.ABORTING, TransactionState.STUCK}
)
"""Those that are not at their end."""


def transaction_state(decision: Decision, *, settled: bool, has_problem: bool) -> TransactionState:
    """Return the state that people see."""
    if has_problem:
        return TransactionState.FORGOTTEN if settled else TransactionState.STUCK
    match decision:
        case Decision.COMMIT:
            return TransactionState.COMMITTED if settled else TransactionState.COMMITTING
        case Decision.ABORT:
            return TransactionState.ABORTED if settled else TransactionState.ABORTING
        case Decision.OPEN:
            return TransactionState.FORGOTTEN if settled else TransactionState.UNDECIDED
        case _:
            assert_never(decision)


def explanation(state: TransactionState, *, missing: Collection[str], past_deadline: bool, problem: str) -> str:
    """Say how the transaction stands and what happens next, or what to do. `missing`: who has not confirmed yet."""
    if state is TransactionState.UNDECIDED and not past_deadline:
        return "its coordinator may still decide it"
    waiting = f"; not confirmed by all of: {', '.join(sorted(missing))}" if missing else ""
    return _EXPLANATIONS[state].format(waiting=waiting, problem=problem)


_RECOVERY = (
    ". Recovery finishes it: a relay that has its TwoPhaseCommit does so by itself, and `postroom transactions recover`"
)
_EXPLANATIONS = {
    TransactionState.UNDECIDED: f"its coordinator did not decide it in time{_RECOVERY}",
    TransactionState.COMMITTING: f"commit is decided{{waiting}}{_RECOVERY}",
    TransactionState.ABORTING: f"abort is decided{{waiting}}{_RECOVERY}",
    TransactionState.STUCK: "{problem}",
    TransactionState.COMMITTED: "all participants have committed",
    TransactionState.ABORTED: "nobody has committed; a branch that is prepared late is rolled back",
    TransactionState.FORGOTTEN: "an operator had recovery forget it: {problem}",
}


def why_not_forgotten(state: TransactionState, *, past_deadline: bool) -> str | None:
    """Why an operator cannot have recovery forget the transaction now; None if it is possible."""
    if state not in UNSETTLED:
        return f"it is {state} already"
    if not past_deadline:
        return "its deadline has not passed: its coordinator still works on it"
    return None


def why_not_decided(decision: Decision, *, past_deadline: bool) -> str | None:
    """Why an operator cannot decide the transaction now; None if it is possible."""
    if decision is not Decision.OPEN:
        return f"{decision.name.lower()} is decided already"
    if not past_deadline:
        return "its deadline has not passed: its coordinator may still decide it"
    return None
