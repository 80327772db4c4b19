"""The states of a keyed response: when it is sent, recorded or given up, without an application or a client."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.replay import Response
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy
from postroom.web.idempotency.recorded_responses import NOT_KEPT
from postroom.web.idempotency.response_state import DRAIN_SECONDS, Action, ResponseState

EVENTS = (("Content-Type", "text/event-stream"),)
LIMIT = 10
LARGE = b"x" * (LIMIT + 1)


def started(status: int = 200, headers: tuple[tuple[str, str], ...] = (), **how: Any) -> ResponseState:
    state = ResponseState(Policy(Options(max_response_bytes=LIMIT)))
    state.start(status, headers, **how)
    return state


def is_kept(record: Response) -> bool:
    return NOT_KEPT not in dict(record.headers)


def test_a_small_response_is_held_until_it_is_whole_and_then_recorded_with_its_body() -> None:
    state = started(201, (("X-Kind", "order"), ("Set-Cookie", "a=b")))
    assert state.add(b"ha", more=True) is Action.HOLD
    assert state.add(b"lf", more=False) is Action.RECORD
    assert state.record() == Response(201, (("x-kind", "order"),), b"half")


def test_a_large_response_is_sent_as_it_comes_and_its_last_part_only_after_it_is_recorded() -> None:
    state = started()
    assert state.add(b"x" * LIMIT, more=True) is Action.HOLD
    assert state.add(b"x", more=True) is Action.SEND
    assert state.add(b"", more=True) is Action.SEND
    assert state.add(b"end", more=False) is Action.RECORD
    assert (state.record().body, is_kept(state.record())) == (b"", False)


def test_a_response_that_is_large_all_at_once_is_recorded_before_any_of_it_is_sent() -> None:
    state = started()
    assert state.add(LARGE, more=False) is Action.RECORD
    assert not is_kept(state.record())


def test_a_stream_of_events_is_sent_from_its_first_part_on() -> None:
    state = started(headers=EVENTS)
    assert (state.is_event_stream, state.drain_seconds) == (True, 0.0)
    assert state.add(b"a", more=True) is Action.SEND
    assert state.add(b"", more=False) is Action.RECORD
    assert not is_kept(state.record())


def test_an_adapter_can_say_that_a_response_is_a_stream() -> None:
    state = started(streamed=True)
    assert (state.is_event_stream, state.drain_seconds) == (False, DRAIN_SECONDS)
    assert state.add(b"a", more=True) is Action.SEND
    assert not is_kept(state.record())


@pytest.mark.parametrize(("failed", "action"), [(False, Action.RECORD), (True, Action.RELEASE)])
def test_a_server_error_is_held_until_the_application_has_ended(*, failed: bool, action: Action) -> None:
    for headers in ((), EVENTS):
        state = started(500, headers)
        assert state.add(b"sorry", more=False) is Action.HOLD
        assert state.end(failed=failed) is action


def test_a_response_that_is_not_whole_lets_the_request_run_again() -> None:
    for state in (started(), started(streamed=True)):
        state.add(b"half", more=True)
        assert state.end(failed=False) is Action.RELEASE
        assert state.end(failed=True) is Action.RELEASE
    assert ResponseState(Policy(Options())).end(failed=False) is Action.RELEASE


@pytest.mark.parametrize(
    ("failed", "disconnected", "action"),
    [
        (False, False, Action.RECORD),
        (False, True, Action.RECORD),
        (True, True, Action.RECORD),
        (True, False, Action.RELEASE),
    ],
)
def test_a_stream_of_events_needs_no_end_and_may_fail_once_its_client_has_gone(
    *, failed: bool, disconnected: bool, action: Action
) -> None:
    state = started(headers=EVENTS)
    state.add(b"a", more=True)
    assert state.end(failed=failed, disconnected=disconnected) is action


@pytest.mark.parametrize(
    ("status", "failed", "action"),
    [(200, False, Action.RECORD), (200, True, Action.RECORD), (500, False, Action.RECORD), (500, True, Action.RELEASE)],
)
def test_a_stream_whose_client_has_gone_counts_as_done_unless_it_is_an_error_page(
    status: int, *, failed: bool, action: Action
) -> None:
    state = started(status, streamed=True)
    state.add(b"a", more=True)
    assert state.abandon(failed=failed) is action


def test_what_is_settled_stays_so() -> None:
    state = started()
    state.settle()
    assert state.end(failed=True) is Action.HOLD
    assert state.abandon(failed=True) is Action.HOLD


def test_a_response_that_is_started_again_replaces_what_was_held() -> None:
    state = started()
    state.add(b"x" * LIMIT, more=True)
    state.start(400, ())
    assert state.add(b"no", more=False) is Action.RECORD
    assert state.record() == Response(400, (), b"no")


@given(st.lists(st.binary(max_size=8), min_size=1), st.sampled_from([200, 404, 500]))
def test_nothing_is_sent_before_it_is_known_whether_it_can_be_replayed(parts: list[bytes], status: int) -> None:
    state = started(status)
    for number, part in enumerate(parts, 1):
        action = state.add(part, more=number < len(parts))
        is_large = sum(map(len, parts[:number])) > LIMIT
        assert (action is Action.SEND) is (is_large and number < len(parts))
    assert is_kept(state.record()) is (sum(map(len, parts)) <= LIMIT)
    if is_kept(state.record()):
        assert state.record().body == b"".join(parts)
