"""Names of the outside as names that can be stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.naming import (
    LEDGER,
    LONGEST,
    RESERVED,
    identity,
    is_ledger_header,
    label,
    line,
    origin,
    parked_key,
    readable,
)

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


@given(st.none() | ANY, ANY, ANY)
def test_I_5_what_a_message_is_known_by_can_be_stored(source: str | None, id: str, topic: str) -> None:
    found = origin(source or None, id, topic)
    assert identity(found) == found


PLACES = st.none() | st.text("a %", min_size=1, max_size=3)


@given(st.tuples(PLACES, st.text("a %", max_size=3)), st.tuples(PLACES, st.text("a %", max_size=3)))
def test_I_5_sources_and_ids_are_told_apart(one: tuple[str | None, str], other: tuple[str | None, str]) -> None:
    assert (origin(*one, "a") == origin(*other, "a")) == (one == other)


def test_I_5_who_sent_it_decides_and_else_where_it_was_sent() -> None:
    uuid = "0197f3c1-8a50-7cc3-9d2e-0b7a5c1f4e11"
    assert origin("postroom", uuid, "orders") == uuid  # as relays have always been marked
    assert origin("shop", uuid, "orders") == f"shop {uuid}"
    assert origin("postroom", "7", "orders") == "postroom 7"
    assert origin(None, "7", "orders") == " orders 7"
    assert origin("shop", "7", "orders") == origin("shop", "7", "orders.again")
    assert origin(None, "7", "orders") != origin(None, "7", "bills")


@given(ANY, ANY)
def test_keys_of_parked_messages_are_of_our_own_and_fit(consumer: str, dedup_id: str) -> None:
    key = parked_key(consumer, dedup_id)
    assert key.startswith(RESERVED)
    assert identity(key) == key
    assert parked_key("a:b", "c") != parked_key("a", "b:c")


def test_the_ledgers_header_is_known_in_any_spelling() -> None:
    assert all(map(is_ledger_header, (LEDGER, "Postroom-Ledger", " POSTROOM_LEDGER ", "po\u017ftroom-ledger")))
    assert not any(map(is_ledger_header, ("postroom-ledgers", "ledger", "x-postroom-ledger", "")))


@given(st.binary(max_size=20))
def test_bytes_that_are_no_text_are_shown_and_the_rest_is_left(raw: bytes) -> None:
    shown = readable(raw.decode("utf-8", "surrogateescape"))
    assert shown == raw.decode("utf-8", "backslashreplace")
    shown.encode()


def test_surrogates_that_never_were_bytes_are_shown_too() -> None:
    assert readable("a\ud800") == "a\\xed\\xa0\\x80"
