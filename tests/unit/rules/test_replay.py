"""K-1, K-2, K-3, L-12: what to do with a keyed request, and with an outcome that is reported for it."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.replay import (
    LONGEST_WAIT,
    Conflict,
    Decision,
    Entry,
    InProgress,
    Recorded,
    Replay,
    Response,
    Run,
    Start,
    Status,
    Verdict,
    decide,
    is_reopened,
    verdict_on,
)

WANTED = Entry("shop", "key", "a" * 64, 7)
OTHER = "b" * 64
CREATED = Response(201, (("location", "/orders/7"),), b"{}")

responses = st.builds(Response, st.integers(100, 599), body=st.binary(max_size=3))
in_progress = st.builds(
    Recorded,
    digest=st.sampled_from([WANTED.digest, OTHER]),
    status=st.just(Status.IN_PROGRESS),
    response=st.none() | responses,
    lease_left=st.floats(-1e6, 1e6),
    expired=st.booleans(),
)
ended = st.builds(
    Recorded,
    digest=st.sampled_from([WANTED.digest, OTHER]),
    status=st.sampled_from([Status.SUCCEEDED, Status.FAILED]),
    response=st.none() | responses,
    expired=st.booleans(),
)
entries = in_progress | ended


def test_K_1_a_new_key_runs() -> None:
    decision = decide(None, WANTED)
    assert decision == Run(WANTED, Start.NEW)
    assert not decision.taken_over


@pytest.mark.parametrize(
    ("recorded", "decision"),
    [
        (Recorded(WANTED.digest, Status.SUCCEEDED, CREATED), Replay(CREATED)),
        (Recorded(WANTED.digest, Status.SUCCEEDED), Replay(Response(200))),
        (Recorded(WANTED.digest, Status.FAILED, Response(502)), Replay(Response(502), failed=True)),
        (Recorded(WANTED.digest, Status.FAILED), Run(WANTED, Start.FAILED)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, lease_left=12.2), InProgress(13)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, lease_left=30.00001), InProgress(30)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, lease_left=0.0001), InProgress(1)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, lease_left=5, expired=True), InProgress(5)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS), Run(WANTED, Start.ABANDONED)),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, Response(202), 5), Replay(Response(202))),
        (Recorded(WANTED.digest, Status.IN_PROGRESS, Response(202)), Run(WANTED, Start.ABANDONED)),
        (Recorded(OTHER, Status.IN_PROGRESS, Response(202), 5), Conflict()),
        (Recorded(WANTED.digest, Status.SUCCEEDED, CREATED, expired=True), Run(WANTED, Start.EXPIRED)),
        (Recorded(OTHER, Status.SUCCEEDED, CREATED, expired=True), Run(WANTED, Start.EXPIRED)),
        (Recorded(OTHER, Status.SUCCEEDED, CREATED), Conflict()),
        (Recorded(OTHER, Status.IN_PROGRESS), Conflict()),
        (Recorded(OTHER, Status.IN_PROGRESS, lease_left=5, expired=True), Conflict()),
    ],
    ids=str,
)
def test_K_2_what_is_decided(recorded: Recorded, decision: Decision) -> None:
    assert decide(recorded, WANTED) == decision


def test_K_2_a_failure_is_replayed_where_that_is_set() -> None:
    failed = Recorded(WANTED.digest, Status.FAILED)
    assert decide(failed, WANTED, replay_failures=True) == Replay(Response(500), failed=True)
    answered = replace(failed, response=Response(503))
    assert decide(answered, WANTED, replay_failures=True) == Replay(Response(503), failed=True)


@given(entries, st.booleans())
def test_K_2_every_entry_leads_to_one_of_the_four(recorded: Recorded, replay_failures: bool) -> None:  # noqa: FBT001 - drawn
    assert isinstance(decide(recorded, WANTED, replay_failures=replay_failures), get_args(Decision))


@given(entries, st.booleans())
def test_K_3_nothing_runs_beside_a_run_that_holds_its_lease(recorded: Recorded, replay_failures: bool) -> None:  # noqa: FBT001 - drawn
    decision = decide(recorded, WANTED, replay_failures=replay_failures)
    if recorded.lease_left > 0:
        assert not isinstance(decision, Run)
    if isinstance(decision, InProgress):
        assert 1 <= decision.retry_after <= LONGEST_WAIT
        assert abs(decision.retry_after - min(ceil(recorded.lease_left), LONGEST_WAIT)) <= 1


@given(ended, st.booleans())
def test_K_2_what_was_answered_is_replayed_until_it_expires(recorded: Recorded, replay_failures: bool) -> None:  # noqa: FBT001 - drawn
    decision = decide(recorded, WANTED, replay_failures=replay_failures)
    if recorded.expired:
        assert decision == Run(WANTED, Start.EXPIRED)
    elif recorded.digest == OTHER:
        assert decision == Conflict()
    elif recorded.response is not None:
        assert decision == Replay(recorded.response, failed=recorded.status is Status.FAILED)


@given(entries, st.booleans())
def test_K_1_a_run_is_always_of_the_wanted_entry_and_says_that_it_took_over(
    recorded: Recorded,
    replay_failures: bool,  # noqa: FBT001 - drawn
) -> None:
    decision = decide(recorded, WANTED, replay_failures=replay_failures)
    if isinstance(decision, Run):
        assert decision.entry == WANTED
        assert decision.taken_over


@given(entries)
def test_L_12_a_success_is_never_written_over(recorded: Recorded) -> None:
    verdict = verdict_on(recorded, WANTED.digest)
    if recorded.digest == WANTED.digest:
        succeeded = recorded.status is Status.SUCCEEDED
        assert verdict is (Verdict.ALREADY_SUCCEEDED if succeeded else Verdict.CONFIRMED)
    elif recorded.expired and recorded.lease_left <= 0:
        assert verdict is Verdict.ABSENT
    else:
        assert verdict is Verdict.OTHER_DIGEST


def test_L_12_an_outcome_without_an_entry_makes_one() -> None:
    assert verdict_on(None, WANTED.digest) is Verdict.ABSENT


@given(entries)
def test_L_12_only_this_requests_failure_is_taken_back(recorded: Recorded) -> None:
    assert is_reopened(recorded, WANTED.digest) == (
        recorded.status is Status.FAILED and recorded.digest == WANTED.digest
    )


def test_a_response_does_not_show_what_it_holds() -> None:
    assert repr(Response(201, (("cookie", "secret"),), b"secret")) == "Response(201, 1 headers, 6 bytes)"
