"""The demo's exit code; the demo itself is shown in `tests/acceptance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.cli.demo import display, scenario

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Command


@pytest.mark.parametrize("wrong", ["", "lost", "billed_twice", "stock_missing"])
def test_a_demo_that_lost_or_doubled_something_fails(
    wrong: str, postroom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {name: int(name == wrong) for name in ("lost", "billed_twice", "stock_missing")}
    monkeypatch.setattr(scenario, "play", lambda *_: figures)
    code = int(bool(wrong))
    assert postroom("demo", "--json").code == code
    assert postroom("demo").code == code


def test_lines_are_for_pipes_and_a_live_screen_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(display.visible()) is display.Lines
    monkeypatch.setattr(display, "can_redraw", lambda: True)
    assert type(display.visible()) is display.Screen
