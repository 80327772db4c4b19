"""Whether a branch has ended as decided."""

import pytest

from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_settling import (
    RECOVERY_RETRY,
    Again,
    Confirmed,
    Quarantine,
    Said,
    Settling,
    Trouble,
    after,
    meaning,
    problem,
    together,
    witness,
)

COMMIT, ABORT = Decision.COMMIT, Decision.ABORT
DAMAGED = Quarantine(Trouble.DAMAGED)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("42704", Said.GONE),
        (1402, Said.ROLLED_BACK),
        (1614, Said.ROLLED_BACK),
        ("55000", Said.BUSY),
        ("42501", Said.DENIED),
        (1227, Said.DENIED),
        ("0A000", Said.ELSEWHERE),
        ("57P01", Said.UNKNOWN),
        (2013, Said.UNKNOWN),
        (None, Said.UNKNOWN),
        ((), Said.UNKNOWN),
        ([], Said.UNKNOWN),
    ],
)
def test_T_2_what_an_error_says_about_a_branch(code: object, said: Said) -> None:
    assert meaning(code, listed=False) is said
    assert meaning(code, listed=True) is said


def test_T_2_not_found_counts_only_if_it_is_not_listed() -> None:
    assert meaning(1397, listed=True) is Said.BUSY
    assert meaning(1397, listed=False) is Said.GONE


@pytest.mark.parametrize(
    ("decision", "said", "marked", "settling"),
    [
        (COMMIT, Said.DONE, None, Confirmed()),
        (COMMIT, Said.DONE, True, Confirmed()),
        (COMMIT, Said.DONE, False, Quarantine(Trouble.DAMAGED)),
        (ABORT, Said.DONE, False, Confirmed()),
        (COMMIT, Said.GONE, None, Confirmed()),
        (COMMIT, Said.GONE, True, Confirmed()),
        (COMMIT, Said.GONE, False, DAMAGED),
        (COMMIT, Said.ROLLED_BACK, None, Quarantine(Trouble.ROLLED_BACK)),
        (COMMIT, Said.ROLLED_BACK, False, DAMAGED),
        (COMMIT, Said.ROLLED_BACK, True, Confirmed()),
        (ABORT, Said.DONE, None, Confirmed()),
        (ABORT, Said.GONE, None, Confirmed()),
        (ABORT, Said.GONE, False, Confirmed()),
        (ABORT, Said.GONE, True, DAMAGED),
        (ABORT, Said.ROLLED_BACK, None, Confirmed()),
        (COMMIT, Said.DENIED, None, Quarantine(Trouble.DENIED)),
        (ABORT, Said.ELSEWHERE, None, Quarantine(Trouble.ELSEWHERE)),
        (COMMIT, Said.UNKNOWN, None, Again()),
        (COMMIT, Said.BUSY, None, Again()),
    ],
)
def test_T_2_whether_a_branch_has_ended_as_decided(
    decision: Decision, said: Said, settling: Settling, *, marked: bool | None
) -> None:
    assert after(decision, said, witness=marked) == settling


def test_T_2_a_connection_that_keeps_its_branch_past_the_deadline_is_ended() -> None:
    assert after(COMMIT, Said.BUSY, past_deadline=True) == Again(kill=True)


def test_T_2_a_mark_that_may_have_been_cleaned_proves_nothing() -> None:
    assert witness(marked=True, age=1e9, kept=60) is True
    assert witness(marked=False, age=59, kept=60) is False
    assert witness(marked=False, age=60, kept=60) is None


def test_T_2_a_transaction_is_settled_when_all_its_branches_are() -> None:
    assert together({}) == Confirmed()
    assert together({"shop": Confirmed(), "bank": Confirmed()}) == Confirmed()
    assert together({"shop": Confirmed(), "bank": Again()}) == Again()
    assert together({"shop": Again(), "bank": DAMAGED}) == DAMAGED


@pytest.mark.parametrize("trouble", Trouble)
def test_T_2_a_problem_names_its_participant_and_a_remedy(trouble: Trouble) -> None:
    text = problem(trouble, "bank")
    assert ("'bank'" in text) == (trouble is not Trouble.LAST_UNKNOWN)
    assert ": " in text


def test_T_2_recovery_waits_longer_each_time_up_to_five_minutes() -> None:
    delays = [RECOVERY_RETRY.delay(attempts, 0.5) for attempts in (1, 2, 100)]
    assert delays == [1.0, 2.0, 300.0]
