"""Where a reader begins. `test_stream_search` shows that nothing is lost, doubled or overtaken by it."""

from __future__ import annotations

import pytest

from postroom.rules.stream.beginning import Found, Left, Start, read_before, start

LEFT = Left("slot", "server", done=50, read_to=70, interrupted=False)
FOUND = Found("slot", "server", confirmed=40, end=90)


@pytest.mark.parametrize(
    ("left", "found", "begins"),
    [
        (LEFT, FOUND, Start(50, needs_sweep=False, known_until=70)),
        (LEFT._replace(interrupted=True), FOUND, Start(50, needs_sweep=False, known_until=0)),
        (LEFT, FOUND._replace(confirmed=51), Start(51, needs_sweep=True, known_until=0)),
        (LEFT, FOUND._replace(end=49), Start(40, needs_sweep=True, known_until=0)),
        (LEFT, FOUND._replace(system_id="another"), Start(40, needs_sweep=True, known_until=0)),
        (Left("", "", 0, 0, interrupted=False), FOUND, Start(40, needs_sweep=True, known_until=0)),
    ],
    ids=["left", "killed", "slot made anew", "ahead of the log", "another server", "the first time"],
)
def test_a_reader_goes_on_where_the_last_one_was_or_has_the_table_swept(
    left: Left, found: Found, begins: Start
) -> None:
    assert start(left, found) == begins


def test_a_reader_leaves_what_it_and_those_before_it_have_read() -> None:
    assert read_before(70, 50) == 70
    assert read_before(40, 50) == 50
    assert read_before(40, 50, open_commit=60) == 61
