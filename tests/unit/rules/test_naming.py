"""Names of the outside as names that can be stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.naming import LONGEST, identity, label, line

ANY = st.text(st.characters(), max_size=400)


@given(ANY)
def test_an_identity_can_be_stored_and_is_its_own(text: str) -> None:
    found = identity(text)
    assert 0 < len(found) <= LONGEST
    assert found.isprintable() or found == text
    assert not found.endswith(" ")
    assert identity(found) == found


@given(ANY, ANY)
def test_different_ones_stay_different(one: str, other: str) -> None:
    assert (identity(one) == identity(other)) == (one == other) or identity(one) in {one, other}


def test_what_is_fit_is_left_as_it_is() -> None:
    assert identity("order-7 für Ä") == "order-7 für Ä"
    assert identity("a" * 255) == "a" * 255
    assert identity("a" * 256) != identity("a" * 257)
    assert label("orders.created") == "orders.created"
    assert label("\n") is None
    assert label("a\nb" + "c" * 300) == "ab" + "c" * 253
    assert line("a\nb") == "ab"
