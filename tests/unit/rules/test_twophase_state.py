"""The state of a two-phase commit, and what people are told of it."""

from __future__ import annotations

from itertools import product

import pytest

from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_state import (
    UNSETTLED,
    TransactionState,
    explanation,
    transaction_state,
    why_not_decided,
    why_not_forgotten,
)

STATES = {
    (Decision.OPEN, False, False): TransactionState.UNDECIDED,
    (Decision.COMMIT, False, False): TransactionState.COMMITTING,
    (Decision.ABORT, False, False): TransactionState.ABORTING,
    (Decision.OPEN, True, False): TransactionState.FORGOTTEN,
    (Decision.COMMIT, True, False): TransactionState.COMMITTED,
    (Decision.ABORT, True, False): TransactionState.ABORTED,
}


def test_the_state_follows_from_the_row() -> None:
    for (decision, settled, has_problem), state in STATES.items():
        assert transaction_state(decision, settled=settled, has_problem=has_problem) is state
    for decision in Decision:
        assert transaction_state(decision, settled=False, has_problem=True) is TransactionState.STUCK
        assert transaction_state(decision, settled=True, has_problem=True) is TransactionState.FORGOTTEN


def test_what_is_not_settled_is_not_at_its_end() -> None:
    for decision, settled, has_problem in product(Decision, (False, True), (False, True)):
        state = transaction_state(decision, settled=settled, has_problem=has_problem)
        assert (state in UNSETTLED) is not settled


@pytest.mark.parametrize(
    ("state", "past_deadline", "words"),
    [
        (TransactionState.UNDECIDED, False, "may still decide"),
        (TransactionState.UNDECIDED, True, "not decide it in time. Recovery"),
        (TransactionState.COMMITTING, False, "commit is decided; not confirmed by all of: bank, shop. Recovery"),
        (TransactionState.ABORTING, True, "abort is decided; not confirmed by all of: bank, shop. Recovery"),
        (TransactionState.STUCK, True, "only a superuser may finish it"),
        (TransactionState.COMMITTED, True, "all participants have committed"),
        (TransactionState.ABORTED, True, "nobody has committed"),
        (TransactionState.FORGOTTEN, True, "forget it: only a superuser"),
    ],
)
def test_each_state_is_explained(state: TransactionState, *, past_deadline: bool, words: str) -> None:
    told = explanation(
        state, missing=["shop", "bank"], past_deadline=past_deadline, problem="only a superuser may finish it"
    )
    assert words in told
    assert "bank" not in explanation(state, missing=[], past_deadline=past_deadline, problem="")


def test_only_what_is_left_behind_can_be_forgotten() -> None:
    for state, past_deadline in product(TransactionState, (False, True)):
        refusal = why_not_forgotten(state, past_deadline=past_deadline)
        assert (refusal is None) is (state in UNSETTLED and past_deadline)
    assert "is committed already" in (why_not_forgotten(TransactionState.COMMITTED, past_deadline=True) or "")


def test_only_what_its_coordinator_left_open_can_be_decided() -> None:
    for decision, past_deadline in product(Decision, (False, True)):
        refusal = why_not_decided(decision, past_deadline=past_deadline)
        assert (refusal is None) is (decision is Decision.OPEN and past_deadline)
    assert "abort is decided already" in (why_not_decided(Decision.ABORT, past_deadline=True) or "")
