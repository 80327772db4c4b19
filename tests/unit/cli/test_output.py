"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from postroom.cli import dead, messages, output, sagas
from postroom.cli.demo import display

if TYPE_CHECKING:
    from postroom.cli.pages import PagePrinter

INDIA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (7, "7"),
        ("orders.created", "orders.created"),
        ("größe", "größe"),
        ("a\nb", r"a\nb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=INDIA), "2026-01-01 21:34:05"),
    ],
)
def test_a_value_for_people_holds_nothing_that_a_terminal_obeys(value: object, shown: str) -> None:
    assert output.shown(value) == shown


@pytest.mark.parametrize(("count", "told"), [(0, "0 marks"), (1, "1 mark"), (2000, "2,000 marks")])
def test_one_is_not_told_as_many(count: int, told: str) -> None:
    assert output.counted(count, "mark") == told


def test_without_a_terminal_a_table_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(
        ("number", "name", ""), [(7, "seven", None), (1000, "", "much")], right=("number",), spare=("name",)
    )
    assert capsys.readouterr().out == "number  name\n     7  seven\n  1000         much\n"


def test_a_terminal_gets_a_table_with_lines_and_does_without_spare_columns_when_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)

    def printed(columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        row = ("[bold]7", "dead", "x" * 60, "y" * 10)
        output.print_table(("number", "status", "error", "topic"), [row], right=("number",), spare=("error", "topic"))
        return capsys.readouterr().out

    wide = printed(120)
    assert "─" in wide
    assert "[bold]7" in wide
    assert "x" * 60 in wide
    narrow = printed(60)
    assert "[bold]7" in narrow
    assert "x" not in narrow
    assert "y" * 10 in narrow
    assert "y" not in printed(20)


@pytest.mark.parametrize(
    ("pages", "wanted"),
    [
        (messages.PAGES, {"id", "position", "status"}),
        (dead.PAGES, {"id", "position"}),
        (sagas.PAGES, {"id", "saga", "state"}),
    ],
    ids=["messages", "dead", "sagas"],
)
def test_what_other_commands_ask_for_is_shown_on_every_terminal(pages: PagePrinter, wanted: set[str]) -> None:
    assert wanted <= set(pages.columns.values())
    assert set(pages.spare) <= set(pages.columns.values()) - wanted


def test_json_is_ascii_and_has_moments_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=INDIA), "key": "größe", "due": None})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"at": "2026-01-01T21:34:05+00:00", "key": "größe", "due": None}


def test_json_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="complex"):
        output.print_json({"number": 1j})


def test_on_a_terminal_text_is_broken_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.print_text("[red] is not markup here", style="bold")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["[red] is not markup", "here"]


def test_the_time_zone_of_the_database_does_not_matter() -> None:
    moment = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
    assert output.shown(moment) == output.shown(moment.astimezone(INDIA))


@pytest.mark.parametrize("terminal", ["xterm", None])
def test_a_bar_moves_on_a_terminal_and_nothing_is_shown_elsewhere(
    terminal: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with output.progress("requeued", 1000) as tell:
        tell(500)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if terminal is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", terminal)
    with output.progress("requeued", 1000) as tell:
        tell(500)
        tell(500)
    shown = capsys.readouterr()
    assert "requeued" in shown.err
    assert "1000/1000" in shown.err
    assert shown.out == ""


def test_a_terminal_that_cannot_draw_over_gets_no_bar_and_no_moving_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with output.progress("requeued", 1000) as tell:
        tell(1000)
    assert capsys.readouterr() == ("", "")
    assert type(display.visible()) is display.Lines


@pytest.mark.parametrize("status", ["sent", "dead", "waiting"])
def test_people_are_told_the_state_once(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    explanation = "sent at noon" if status == "sent" else "why"
    messages.show_one({"status": status, "explanation": explanation, "history": []}, as_json=False)
    assert capsys.readouterr().out.startswith("sent at noon\n" if status == "sent" else f"{status}: why\n")
