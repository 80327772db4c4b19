from __future__ import annotations

from postroom.delivery.signals import Signals


def test_a_signal_wakes_its_kind_and_one_without_a_known_kind_wakes_all() -> None:
    signals = Signals()
    rows, lanes = signals.subscribe("rows"), signals.subscribe("lanes")
    signals.wake("rows")
    assert (rows.is_set(), lanes.is_set()) == (True, False)
    rows.clear()
    signals.wake()
    assert (rows.is_set(), lanes.is_set()) == (True, True)
    rows.clear()
    signals.wake("of another version")
    assert rows.is_set()


def test_that_rows_lie_behind_the_cursor_is_told_once() -> None:
    signals = Signals()
    assert not signals.take_rows_behind()
    signals.rows_behind()
    assert [signals.take_rows_behind(), signals.take_rows_behind()] == [True, False]


def test_that_rows_were_made_due_is_told_once() -> None:
    signals = Signals()
    assert not signals.take_rows_due()
    signals.rows_due()
    assert [signals.take_rows_due(), signals.take_rows_due()] == [True, False]
