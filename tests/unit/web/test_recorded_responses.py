"""What is kept of a response, and how it is replayed."""

from __future__ import annotations

import pytest

from postroom.errors import InvalidEntry
from postroom.rules.replay import Replay, Response
from postroom.web.http import sized
from postroom.web.idempotency.recorded_responses import as_response, is_event_stream, kept, not_kept, replayed

HEADERS = (
    ("Set-Cookie", "a=b"),
    ("Authorization", "x"),
    ("Content-Length", "4"),
    ("Date", "now"),
    ("X-Kind", "order"),
    ("Bad", "a\0b"),
    ("Postroom-Response-Not-Kept", "1"),
)


def test_a_response_is_kept_without_what_is_one_clients_own() -> None:
    assert kept(Response(200, HEADERS, b"body")) == Response(200, (("x-kind", "order"),), b"body")
    assert kept(Response(200, HEADERS, b"body"), {"set-cookie", "content-length"}).headers == (("set-cookie", "a=b"),)


def test_a_response_that_was_not_kept_is_told_of() -> None:
    again = replayed(Replay(not_kept(Response(206, HEADERS, b"body"))))
    assert again.status == 409
    assert b'"original_status":206' in again.body


@pytest.mark.parametrize(("status", "has_length"), [(101, False), (204, False), (304, False), (200, True), (404, True)])
def test_a_response_has_a_length_where_it_may(status: int, *, has_length: bool) -> None:
    assert (("content-length", "0") in sized(Response(status)).headers) is has_length


def test_only_responses_can_be_recorded() -> None:
    for wrong in (None, "x", 5, object()):
        with pytest.raises(InvalidEntry, match="not a response"):
            as_response(wrong)


@pytest.mark.parametrize("value", ["text/event-stream", "Text/Event-Stream; charset=utf-8"])
def test_a_stream_of_events_is_known_however_its_type_is_written(value: str) -> None:
    assert is_event_stream([("Content-Type", value)])
    assert not is_event_stream([("Content-Type", "text/html"), ("X-Type", value)])
