"""Names of the outside as names that can be stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from postroom.rules import naming
from postroom.rules.naming import (
    LEDGER,
    LONGEST,
    RESERVED,
    dedup_id_of,
    is_ledger_header,
    parked_key,
    readable,
    saga_key,
    saga_signal_key,
    storable_header,
    storable_id,
    storable_label,
    twophase_key,
)

ANY = st.text(st.characters(), max_size=400)


@given(ANY)
def test_an_identity_can_be_stored_and_is_its_own(text: str) -> None:
    found = storable_id(text)
    assert 0 < len(found) <= LONGEST
    assert found.isprintable() or found == text
    assert not found.endswith(" ")
    assert storable_id(found) == found


@given(ANY, ANY)
def test_different_ones_stay_different(one: str, other: str) -> None:
    assert (storable_id(one) == storable_id(other)) == (one == other) or storable_id(one) in {one, other}


def test_what_is_fit_is_left_as_it_is() -> None:
    assert storable_id("order-7 für Ä") == "order-7 für Ä"
    assert storable_id("a" * 255) == "a" * 255
    assert storable_id("a" * 256) != storable_id("a" * 257)
    assert storable_label("orders.created") == "orders.created"
    assert storable_label("\n") is None
    assert storable_label("a\nb" + "c" * 300) == "ab" + "c" * 253
    assert storable_header("a\nb") == "ab"


@given(st.none() | ANY, ANY, ANY)
def test_I_5_what_a_message_is_known_by_can_be_stored(source: str | None, id: str, topic: str) -> None:
    found = dedup_id_of(source or None, id, topic)
    assert storable_id(found) == found


PLACES = st.none() | st.text("a %", min_size=1, max_size=3)


@given(st.tuples(PLACES, st.text("a %", max_size=3)), st.tuples(PLACES, st.text("a %", max_size=3)))
def test_I_5_sources_and_ids_are_told_apart(one: tuple[str | None, str], other: tuple[str | None, str]) -> None:
    assert (dedup_id_of(*one, "a") == dedup_id_of(*other, "a")) == (one == other)


def test_I_5_who_sent_it_decides_and_else_where_it_was_sent() -> None:
    uuid = "0197f3c1-8a50-7cc3-9d2e-0b7a5c1f4e11"
    assert dedup_id_of("postroom", uuid, "orders") == uuid  # as relays have always been marked
    assert dedup_id_of("shop", uuid, "orders") == f"shop {uuid}"
    assert dedup_id_of("postroom", "7", "orders") == "postroom 7"
    assert dedup_id_of(None, "7", "orders") == " orders 7"
    assert dedup_id_of("shop", "7", "orders") == dedup_id_of("shop", "7", "orders.again")
    assert dedup_id_of(None, "7", "orders") != dedup_id_of(None, "7", "bills")


@given(ANY, ANY)
def test_keys_of_parked_messages_are_of_our_own_and_fit(consumer: str, dedup_id: str) -> None:
    key = parked_key(consumer, dedup_id)
    assert key.startswith(RESERVED)
    assert storable_id(key) == key
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


@given(st.text("ab:", min_size=1, max_size=50), st.text(min_size=1, max_size=180), ANY)
def test_keys_of_sagas_and_signals_are_of_our_own_and_fit(name: str, id: str, message_id: str) -> None:
    for key in (saga_key(name, id), saga_signal_key(name, id, "parcel", message_id)):
        assert key.startswith(RESERVED)
        assert len(key) <= LONGEST
    assert saga_signal_key(name, id, "parcel", message_id) != saga_signal_key(name, id, "parcel", f"{message_id}.")


def test_an_instance_of_a_saga_has_a_key_that_no_user_can_give() -> None:
    assert naming.saga_key("place_order", "order-7") == f"{naming.RESERVED}saga:place_order:order-7"


def test_the_queue_of_a_saga_is_told_from_others() -> None:
    assert naming.is_saga_queue("saga:place_order")
    assert not naming.is_saga_queue("default")


def test_the_key_of_a_recovery_is_ours_and_differs_by_transaction_and_period() -> None:
    keys = {twophase_key(tx, period) for tx in ("1a-00ff", "1a-00fe") for period in (1, 11)}
    assert len(keys) == 4
    assert all(key.startswith(RESERVED) for key in keys)
