"""Keys and headers of a saga's calls, and the correlation ids of replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.saga_calls import call_headers, call_key, correlated, correlation_id
from postroom.rules.saga_plan import Direction

NAMES = st.text("ab-._0", min_size=1, max_size=50)
IDS = st.text(min_size=1, max_size=180).filter(str.isprintable)
CALLS = st.tuples(NAMES, IDS, NAMES, st.sampled_from(Direction))


def test_the_headers_name_the_call_and_carry_its_key() -> None:
    assert call_headers("place_order", "order 7", "charge", Direction.BACK) == {
        "idempotency-key": "place_order/order 7/charge/undo",
        "postroom-saga": "place_order/order 7",
        "postroom-saga-step": "charge",
        "postroom-saga-direction": "undo",
    }


def test_an_id_that_no_header_can_hold_is_escaped() -> None:
    assert call_key("order", "bücher/7", "charge", Direction.FORWARD) == "order/b%C3%BCcher/7/charge/do"


@given(CALLS, CALLS)
def test_every_key_fits_a_header_and_different_calls_have_different_ones(
    one: tuple[str, str, str, Direction], other: tuple[str, str, str, Direction]
) -> None:
    assert len(call_key(*one)) <= 255
    assert all(value.isascii() and value.isprintable() for value in call_headers(*one).values())
    assert (call_key(*one) == call_key(*other)) == (one == other)


@given(NAMES, IDS, NAMES)
def test_a_correlation_id_leads_back_to_the_instance_and_the_event(name: str, id: str, event: str) -> None:
    assert correlated(correlation_id(name, id, event)) == (name, id, event)


@pytest.mark.parametrize("text", ["", "place_order", "place_order/parcel", "place_order/parcel/", "A/b/c"])
def test_other_texts_are_no_correlation_ids(text: str) -> None:
    assert correlated(text) is None
