"""How far the stream is done: never past a message that is not settled, and all the way when all are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.stream.modes import STREAMING, Mode
from postroom.rules.stream.progress import Progress
from postroom.rules.stream.taking_along import Together, together
from postroom.rules.stream.wal_places import as_text, from_text, publication_name, slot_name

if TYPE_CHECKING:
    import random


@given(st.lists(st.integers(0, 3), max_size=12), st.randoms(use_true_random=False))
def test_done_is_the_end_of_the_last_batch_before_the_first_open_one(sizes: list[int], chance: random.Random) -> None:
    progress = Progress(5)
    ends = [10 * (n + 1) for n in range(len(sizes))]
    for batch, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        progress.begin(batch, size, end)
    open_ = {batch: size for batch, size in enumerate(sizes) if size}
    pieces = [batch for batch, size in enumerate(sizes) for _ in range(size)]
    chance.shuffle(pieces)
    for batch in pieces:
        first_open = min(open_)
        assert progress.done == (ends[first_open - 1] if first_open else 5)
        assert not progress.is_idle
        progress.pass_by(10_000)
        open_[batch] -= 1
        open_ = {batch: size for batch, size in open_.items() if size}
        progress.settle({batch: 1})
    assert progress.is_idle
    assert progress.done == max([5, *ends])
    progress.pass_by(10_000)
    assert progress.done == 10_000


def test_what_is_settled_of_an_earlier_term_changes_nothing() -> None:
    progress = Progress(5)
    progress.settle({77: 1})
    assert (progress.done, progress.is_idle) == (5, True)
    progress.begin(1, 0, 3)
    assert progress.done == 5


def test_an_unsent_message_takes_along_what_was_read_behind_it() -> None:
    undecided = [("a", 5), ("b", 6), ("a", 7), (None, 8), ("c", 9), ("c", 2)]
    assert together({"a": 4, "c": 8}, undecided) == Together([5, 7, 9], {"c"})
    assert together({}, undecided) == Together([], set())


@given(st.integers(0, 2**63 - 1))
def test_places_are_written_as_postgresql_writes_them(place: int) -> None:
    assert from_text(as_text(place)) == place


def test_names_fit_and_differ() -> None:
    assert as_text(0x16_B374_D848) == "16/B374D848"
    assert slot_name("shop", "postroom", "").startswith("postroom_shop_postroom_")
    many = {slot_name("Shop " + "x" * n, "postroom", p) for n in range(80) for p in ("", "a_")}
    assert len(many) == 160
    assert all(len(name) <= 63 and name.replace("_", "").isalnum() and name == name.lower() for name in many)
    assert publication_name("postroom", "") == "postroom_outbox"
    assert publication_name("postroom", "a_") == "postroom_a_outbox"
    assert len(publication_name("s" * 63, "a_")) <= 63
    assert publication_name("s" * 63, "a_") != publication_name("s" * 63, "b_")


def test_lanes_rest_while_an_outbox_leaves_the_stream() -> None:
    assert {mode for mode in Mode if mode.lanes_rest} == {Mode.CLOSING, Mode.DRAINING}
    assert set(STREAMING) == {Mode.STREAM, Mode.CLOSING, Mode.DEBEZIUM}
