"""A series: one message after another, each finished by itself, until one fails or the series may go on no more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom import RetryPolicy
from postroom.consumer.handler_series import SECONDS, HandlerSeries
from postroom.consumer.handlers import handler_of
from postroom.incoming import Incoming

if TYPE_CHECKING:
    import pytest


def bill(message: Incoming) -> None: ...


HANDLER = handler_of(bill, "orders", None, RetryPolicy(), 30)
MESSAGES = [Incoming(id=str(n), topic="orders", payload=b"", content_type="text/plain") for n in range(4)]


def series(may_go_on: bool = True) -> HandlerSeries:  # noqa: FBT001, FBT002 - the only parameter
    return HandlerSeries(HANDLER, MESSAGES, lambda: may_go_on)


def test_at_any_time_it_is_the_call_with_one_message() -> None:
    call = series()
    seen = []
    for message in call.each():
        seen.append((message.id, [one.id for one in call.messages], call.subjects))
        call.is_first = message.id != "2"
    assert seen == [(one.id, [one.id], frozenset({one.dedup_id})) for one in MESSAGES]
    assert [one.is_first for one in call.finished] == [True, True, False, True]
    assert call.timeout == HANDLER.timeout + SECONDS


def test_a_message_whose_mark_is_waited_for_is_a_subject_too() -> None:
    """If that does not end, another call with it would only wait, too, and occupy another thread."""
    call = series()
    first = call.start()
    following = call.following()
    assert (first, following) == (MESSAGES[0], MESSAGES[1])
    assert call.subjects == {one.dedup_id for one in MESSAGES[:2]}
    call.finish(following)
    assert call.subjects == {MESSAGES[1].dedup_id}


def test_one_that_is_repeated_begins_where_the_last_has_failed() -> None:
    call = series()
    for message in call.each():
        if message.id == "2":
            break
    repeated = call.again()
    assert [message.id for message in repeated.each()] == ["2", "3"]
    assert len(call.finished) == len(MESSAGES)


def test_it_ends_when_it_may_not_go_on_or_is_late_or_has_taken_long(monkeypatch: pytest.MonkeyPatch) -> None:
    late, long = series(), series()
    assert [message.id for message in series(may_go_on=False).each()] == ["0"]
    for _ in late.each():
        late.is_late = True
    assert len(late.finished) == 1
    times = iter([100.0, *[100.0 + SECONDS / 2] * 2, *[100.0 + 2 * SECONDS] * 2])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    assert [message.id for message in long.each()] == ["0", "1"]
