"""What a browser sends to the dashboard is read strictly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroom.admin import Filter, State
from postroom.web.dashboard.message_filter import MessageFilter, of_group, searched
from postroom.web.dashboard.params import BadInput, Params

NOW = datetime(2026, 5, 17, 12, 0, tzinfo=UTC)
ID = "01a1eb10-74c7-720d-8c25-80e68eaa5ad2"


def test_what_is_empty_is_not_given() -> None:
    params = Params({"a": "  ", "b": " x "})
    assert (params.text("a"), params.text("b"), params.text("c"), params.number("a")) == (None, "x", None, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("a", "x" * 1001), ("a", "\x00"), ("a", "\ud800")],
)
def test_texts_have_limits(name: str, value: str) -> None:
    with pytest.raises(BadInput, match=name):
        Params({name: value}).text(name)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "٣", str(2**63), "9" * 30])
def test_a_position_is_a_whole_number(value: str) -> None:
    with pytest.raises(BadInput, match="whole number"):
        Params({"before": value}).number("before")
    assert Params({"before": str(2**63 - 1)}).number("before") == 2**63 - 1


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("15m", NOW - timedelta(minutes=15)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-05-01", datetime(2026, 5, 1, tzinfo=UTC)),
        ("2026-05-01 14:30", datetime(2026, 5, 1, 14, 30, tzinfo=UTC)),
        ("2026-05-01T14:30+02:00", datetime(2026, 5, 1, 12, 30, tzinfo=UTC)),
    ],
)
def test_times_are_ago_or_in_utc(text: str, moment: datetime) -> None:
    assert Params({"since": text}).moment("since", NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "999999d", "1x", "0001-01-01T00:00+23:00", "h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a time"):
        Params({"since": text}).moment("since", NOW)


def test_a_search_line_becomes_typed_fields() -> None:
    assert searched('topic:orders.created state:dead error:"no such account"') == {
        "topic": "orders.created",
        "state": "dead",
        "error": "no such account",
    }
    assert searched("timed out key:7") == {"key": "7", "error": "timed out"}
    assert searched("http://x") == {"error": "http://x"}
    assert searched(ID) == UUID(ID)
    assert searched(f"id:{ID}") == UUID(ID)
    assert searched("") == {}
    for wrong in ('topic:"x', "id:7"):
        with pytest.raises(BadInput):
            searched(wrong)


def test_the_filter_bar_keeps_what_was_written_and_fixes_times_to_act() -> None:
    wanted = MessageFilter.read(Params({"topic": "a&b", "since": "1h", "type": "T"}), NOW)
    assert wanted.query == "topic=a%26b&type=T&since=1h"
    assert wanted.without("since") == "topic=a%26b&type=T"
    assert wanted.fixed()["since"] == "2026-05-17T11:00:00+00:00"
    assert wanted.state is None
    acted_on = wanted.selection(NOW)
    assert (acted_on.topic, acted_on.type, acted_on.since, acted_on.as_of) == (
        *("a&b", "T"),
        *(NOW - timedelta(hours=1), NOW),
    )


def test_what_only_dead_letters_have_selects_dead_letters() -> None:
    assert MessageFilter.read(Params({"code": "TIMEOUT"}), NOW).state is State.DEAD
    for wrong in (
        {"code": "TIMEOUT", "state": "sent"},
        {"state": "gone"},
        {"since": "1h", "until": "2h"},
        {"none": "queue"},
        {"fingerprint": 'a "quote'},
        {"none": "topic", "topic": "a"},
    ):
        with pytest.raises(BadInput):
            MessageFilter.read(Params(wrong), NOW)


@pytest.mark.parametrize(
    "group",
    [
        {"topic": "a", "code": "X", "fingerprint": "no … b"},
        {"topic": "", "code": "", "fingerprint": ""},
        {"topic": "a", "code": "X", "fingerprint": ""},
        {"topic": "a", "code": "X", "fingerprint": ' two\r\nlines, a "quote and a \\\\ at the end  '},
        {"topic": "a", "code": "X", "fingerprint": "  "},
    ],
)
def test_a_groups_address_selects_this_group_and_no_other(group: dict[str, Any]) -> None:
    wanted = Filter(queue="default", as_of=NOW, **group)
    bar = of_group(wanted)
    for sent in (bar.written, bar.fixed()):
        assert "\n" not in "".join(sent.values())
        assert MessageFilter.read(Params(sent), NOW).selection(NOW) == wanted
