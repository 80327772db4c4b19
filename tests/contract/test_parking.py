"""Messages that are parked for a handler: kept once, with their failure, in the order of their keys."""

from __future__ import annotations

import pytest

from postroom.message import Message
from postroom.rules.ordering import Order, key_hash
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.parking import Failed, Parking
from tests.contract.store_drivers import Room, moment

QUEUE = "handler:billing"


def parked(key: str | None = "k", identity: str = "1") -> Message:
    return Message.new("orders", {"n": 1}, key=key, idempotency_key=f"parked:{identity}")


def parking(room: Room, order: Order = Order.HOLD) -> Parking:
    return Parking(room.names, QUEUE, order)


@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "unkeyed"])
def test_I_4_a_failed_message_waits_for_its_next_attempt(room: Room, key: str | None) -> None:
    assert room.run(parking(room).park(parked(key), Failed("OOPS", "x" * 1000, 60.0))).is_new
    [(position,)] = room.select("SELECT position FROM {outbox}")
    delivery = room.delivery(position)
    assert (delivery.state, delivery.queue, delivery.attempts, delivery.claims) == (2, QUEUE, 1, 0)
    assert (delivery.error_code, delivery.error_message) == ("OOPS", "x" * 512)
    due = moment(60)
    assert delivery.due is not None
    assert due is not None
    assert abs((delivery.due - due).total_seconds()) < 10
    assert delivery.failed_at is not None
    assert room.claim() == []  # not in the queue of the relay of everything


def test_I_4_without_another_attempt_it_is_dead(room: Room) -> None:
    assert room.run(parking(room).park(parked(), Failed("OOPS", "no", None))).is_new
    [(position,)] = room.select("SELECT position FROM {outbox}")
    assert (room.delivery(position).state, room.delivery(position).attempts) == (3, 1)


@pytest.mark.parametrize("character", ['"', "\\", "'", "x", "é"])
def test_L_10_what_mysql_would_not_take_is_told_by_how_long_it_is_in_a_statement(room: Room, character: str) -> None:
    """Its answer may be a lost connection, and headers are text in JSON in a statement."""
    if room.names.dialect != "mysql":
        message = Message.new("orders", b"x" * 1000)
        assert not room.run(parking(room).is_too_large(message))
        return
    [[limit]] = room.select("SELECT @@max_allowed_packet")
    written = {'"': 4, "\\": 4, "'": 2, "x": 1, "é": 2}[character]  # bytes of a statement
    for bytes_over, expected in ((-8192, False), (8192, True)):
        message = Message.new("orders", None, headers={"h": character * ((limit + bytes_over) // written)})
        assert room.run(parking(room).is_too_large(message)) is expected


def test_what_is_parked_is_parked_once(room: Room) -> None:
    store = parking(room)
    assert room.run(store.park(parked(), Failed("OOPS", "no", 60.0))).is_new
    assert not room.run(store.park(parked(), Failed("OOPS", "no", None))).is_new
    assert room.select("SELECT count(*) FROM {delivery}") == [(1,)]
    assert room.select("SELECT state FROM {delivery}") == [(2,)]


@pytest.mark.parametrize("failed", [None, Failed("OOPS", "no", None)], ids=["behind others", "dead"])
def test_what_others_hold_the_key_of_is_parked_all_the_same(room: Room, failed: Failed | None) -> None:
    """Whoever holds it: the same contents in another queue, other contents in this one."""
    store = parking(room)
    room.add_messages([parked()])
    assert room.run(store.park(parked(), failed)).is_new
    room.run(store.park(parked(identity="2"), failed))
    other = Message.new("other", {"n": 2}, idempotency_key="parked:2")
    assert room.run(store.park(other, failed)).is_new
    assert room.select("SELECT topic, count(*) FROM {outbox} WHERE queue <> 'default' GROUP BY topic ORDER BY 1") == [
        ("orders", 2),
        ("other", 1),
    ]
    states = room.select("SELECT state, count(*) FROM {delivery} WHERE queue <> 'default' GROUP BY state")
    assert states == [(0 if failed is None else 3, 3)]


def test_L_16_keys_are_parked_while_a_message_of_theirs_waits_is_behind_or_is_dead(room: Room) -> None:
    store = parking(room)
    room.run(store.park(parked("waits", "1"), Failed("OOPS", "no", 60.0)))
    room.run(store.park(parked("behind", "2"), None))
    room.run(store.park(parked("dead", "3"), Failed("OOPS", "no", None)))
    room.run(store.park(parked(None, "4"), Failed("OOPS", "no", 60.0)))
    room.add(key="elsewhere")
    asked = {key_hash(key): key for key in ("waits", "behind", "dead", "elsewhere", "free")}
    assert {asked[one] for one in room.run(store.parked(list(asked)))} == {"waits", "behind", "dead"}
    skipping = parking(room, Order.SKIP)
    assert {asked[one] for one in room.run(skipping.parked(list(asked)))} == {"waits", "behind"}
    assert room.run(store.parked([])) == set()


def test_a_key_is_free_when_what_was_parked_is_sent(room: Room) -> None:
    store = parking(room)
    room.run(store.park(parked("k"), Failed("OOPS", "no", 0.0)))
    deliveries = room.on(QUEUE)
    lanes = room.run(deliveries.lanes.take("worker", 30))
    room.run(deliveries.lanes.promote(lanes))
    [claimed] = room.run(deliveries.lanes.read(lanes, 10, 30)).messages
    assert (claimed.attempts, claimed.message.topic) == (1, "orders")
    assert room.run(store.parked([key_hash("k")])) == {key_hash("k")}
    assert room.run(deliveries.settlements.settle([Sent(claimed)])) == []
    assert room.run(store.parked([key_hash("k")])) == set()
