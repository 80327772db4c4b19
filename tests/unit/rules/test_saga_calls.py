"""Keys and headers of a saga's calls, and the correlation ids of replies."""

from __future__ import annotations

from typing import Any

import pytest
import starlette.datastructures
import werkzeug.datastructures
from django.http.request import HttpHeaders
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import InvalidMessage
from postroom.rules.saga_calls import call_headers, call_key, call_of, correlated, correlation_id
from postroom.rules.saga_plan import Direction

NAMES = st.text("ab-._0", min_size=1, max_size=50)
IDS = st.text(min_size=1, max_size=180).filter(str.isprintable)
CALLS = st.tuples(NAMES, IDS, NAMES, st.sampled_from(Direction))


def test_the_headers_name_the_call_and_carry_its_key() -> None:
    assert call_headers("place_order", "order 7", "charge", Direction.BACK) == {
        "idempotency-key": "place_order/order%207/charge/undo",
        "postroom-saga": "place_order/order%207",
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
    assert not any(" " in value for value in call_headers(*one).values())  # HTTP cuts them off at the ends
    assert (call_key(*one) == call_key(*other)) == (one == other)


@given(NAMES, IDS, NAMES)
def test_a_correlation_id_leads_back_to_the_instance_and_the_event(name: str, id: str, event: str) -> None:
    assert correlated(correlation_id(name, id, event)) == (name, id, event)


@pytest.mark.parametrize(
    "text", ["", "place_order", "place_order/parcel", "place_order/parcel/", "A/b/c", f"{'a' * 51}/b/c"]
)
def test_other_texts_are_no_correlation_ids(text: str) -> None:
    assert correlated(text) is None


CHARGE = call_headers("place_order", "order-7", "charge", Direction.FORWARD)
ANYTHING = st.text(st.characters(exclude_categories=[]), min_size=1)


@given(CALLS, CALLS)
def test_S_4_do_and_undo_of_a_step_share_their_marks_and_nobody_else_does(one: Any, other: Any) -> None:
    name, instance, step, _ = one
    do, undo = (call_of(call_headers(name, instance, step, direction)) for direction in Direction)
    assert (do.direction, undo.direction) == (Direction.FORWARD, Direction.BACK)
    assert (do.done, do.undone) == (undo.done, undo.undone)
    assert do.done != do.undone
    assert max(len(do.done), len(do.undone)) <= 255
    another = call_of(call_headers(*other))
    assert ({do.done, do.undone} & {another.done, another.undone} != set()) == (one[:3] == other[:3])


@given(ANYTHING, ANYTHING, ANYTHING)
def test_S_4_marks_differ_whatever_a_stranger_sends(instance: str, step: str, more: str) -> None:
    sent = {**CHARGE, "postroom-saga": instance, "postroom-saga-step": step}
    moved = {**CHARGE, "postroom-saga": f"{instance} {step}", "postroom-saga-step": more}
    assert call_of(sent).done != call_of(moved).done


FRAMEWORKS = {
    "plain": dict,
    "Starlette": starlette.datastructures.Headers,
    "Flask": werkzeug.datastructures.Headers,  # not a Mapping
    "Django": HttpHeaders,
}


@pytest.mark.parametrize("kind", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_S_4_headers_of_every_framework_are_read_and_their_names_ignore_case(kind: Any) -> None:
    named = {name.title(): value for name, value in CHARGE.items()}
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in CHARGE.items()}
    assert call_of(kind(environ if kind is HttpHeaders else named)) == call_of(CHARGE)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([("postroom-saga", "a")], "must be a mapping of names to values, not list"),
        (None, "not NoneType"),
        (dict, "not type"),
        ({}, "header postroom-saga of the saga's call is missing: the caller must send all of saga.headers"),
        ({**CHARGE, "postroom-saga": ""}, "header postroom-saga of the saga's call is ''"),
        ({**CHARGE, "postroom-saga-step": b"x"}, "header postroom-saga-step of the saga's call is b'x'"),
        ({**CHARGE, "postroom-saga-direction": "redo"}, "header postroom-saga-direction is 'redo'"),
    ],
)
def test_S_4_headers_that_are_no_call_name_what_is_wrong(headers: Any, message: str) -> None:
    with pytest.raises(InvalidMessage, match=message):
        call_of(headers)
