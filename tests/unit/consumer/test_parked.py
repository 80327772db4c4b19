"""Received messages parked and back, and the keys that have one parked."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from postroom.consumer.parked import ASKED_AGAIN, ParkedKeys, as_parked, as_received
from postroom.incoming import Incoming

ANY = st.text(max_size=300)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_nothing_is_lost_on_the_way() -> None:
    message = Incoming(
        id="a-1",
        topic="orders.created",
        payload=b"{}",
        content_type="application/json",
        type="OrderCreated",
        key="k",
        source="shop",
        aggregate_type="order",
        aggregate_id="7",
        position=42,
        created_at=NOW,
        expires_at=NOW,
        headers={"colour": "red"},
        problem="the event has no type",
    )
    assert as_received(as_parked("billing", message)) == replace(message, assigned_dedup_id=message.dedup_id)


@given(
    id=st.text(min_size=1, max_size=300),
    topic=ANY,
    key=st.none() | ANY,
    type=st.none() | ANY,
    payload=st.none() | st.binary(max_size=20),
    headers=st.dictionaries(ANY, ANY, max_size=3),
    source=st.none() | st.text(min_size=1, max_size=300),
)
def test_whatever_a_stranger_sends_can_be_parked(
    id: str,
    topic: str,
    key: str | None,
    type: str | None,
    payload: bytes | None,
    headers: dict[str, str],
    source: str | None,
) -> None:
    message = Incoming(
        id=id, topic=topic, payload=payload, content_type=topic, type=type, key=key, headers=headers, source=source
    )
    parked = as_parked("billing", message)
    again = as_parked("billing", message)
    assert parked.idempotency_key == again.idempotency_key
    assert as_parked("shipping", message).idempotency_key != parked.idempotency_key
    received = as_received(parked)
    assert received.payload == payload
    assert (received.key is None) == (key is None)
    assert as_received(as_parked("billing", received)).id == received.id
    assert received.dedup_id == message.dedup_id


def test_consumers_with_similar_names_do_not_take_each_others_messages_for_parked() -> None:
    one = Incoming(id="orders:1", topic="t", payload=None, content_type="text/x")
    other = Incoming(id="1", topic="t", payload=None, content_type="text/x")
    assert as_parked("billing", one).idempotency_key != as_parked("billing:orders", other).idempotency_key


def asked(keys: ParkedKeys, batch: set[int], parked: set[int]) -> None:
    question, wanted = keys.ask(batch)
    keys.answer(question, wanted, parked & wanted)


def test_what_the_database_knows_is_held_until_it_knows_it_no_more() -> None:
    keys = ParkedKeys()
    asked(keys, {1, 2}, {1})
    assert (keys.holds(1), keys.holds(2)) == (True, False)
    asked(keys, {3}, set())
    assert not keys.holds(1)


def test_what_was_parked_while_the_database_was_asked_is_held() -> None:
    keys = ParkedKeys()
    question, wanted = keys.ask({1})
    keys.add(1)
    keys.answer(question, wanted, set())
    assert keys.holds(1)
    asked(keys, {1}, set())
    assert not keys.holds(1)


def test_keys_that_never_come_again_are_forgotten_in_the_end() -> None:
    keys = ParkedKeys()
    for one in range(3 * ASKED_AGAIN):
        keys.add(one)
    for _ in range(3):
        asked(keys, set(), set())
    assert not any(keys.holds(one) for one in range(3 * ASKED_AGAIN))


def test_those_that_stay_parked_do_not_keep_others_from_being_asked_for() -> None:
    keys = ParkedKeys()
    stays = set(range(ASKED_AGAIN))
    for one in range(2 * ASKED_AGAIN):
        keys.add(one)
    for _ in range(2):
        asked(keys, set(), stays)
    assert [keys.holds(0), keys.holds(2 * ASKED_AGAIN - 1)] == [True, False]
