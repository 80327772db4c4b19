"""Status: counts, lists and the view agree with each other and with the rules."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from postroom.admin import Status, as_json
from postroom.rules.lifecycle import State, Stored, status
from postroom.rules.ordering import Order
from postroom.store.admin.message_list import COLUMNS
from postroom.store.outbox.leases import Dead, Expired, GivenBack, Retry, Sent
from postroom.store.outbox.workers import Workers
from tests.contract.store_drivers import Room, key_of_lane, positions


def figures(room: Room, order: Order = Order.HOLD) -> Status:
    return room.admin(order).status()


def listed(room: Room, state: State | None = None, limit: int = 50, before: int | None = None) -> list[int]:
    return [one.position for one in room.admin().messages(status=state, limit=limit, before=before)]


def test_an_empty_outbox_has_nothing_in_any_state(room: Room) -> None:
    assert figures(room) == Status(0, 0, 0, 0, 0, 0, 0, 0.0)
    assert listed(room) == []


def populate(room: Room, seed: int) -> None:
    """Messages in every state that there is, many of them with a history."""
    chance = random.Random(seed)  # noqa: S311 - to have the same population again, not to keep a secret
    keys = [None, "a", "b", "c", *(key_of_lane(n) for n in range(4))]
    lanes = room.take_lanes("gone", limit=4)
    for _ in range(3):
        room.advance(chance.choice([0, 45, 61]))
        for _ in range(12):
            deliver_in = chance.choice([None, None, 40, 4000])
            expires_in = chance.choice([None, 5000])
            room.add(chance.randint(1, 4), key=chance.choice(keys), deliver_in=deliver_in, expires_in=expires_in)
        room.run(room.deliveries.lanes.release(lanes))
        lanes = room.take_lanes("worker", seconds=60, limit=chance.randint(4, 16))
        room.run(room.deliveries.lanes.promote(lanes))
        claimed = [*room.claim(limit=12, seconds=60), *room.read_lanes(lanes, limit=4, seconds=60).messages]
        endings = [
            chance.choice(
                [
                    Sent(one),
                    Expired(one),
                    Retry(one, chance.choice([40, 4000]), "CODE", "text"),
                    Dead(one, "CODE", "text"),
                    GivenBack(one),
                    None,
                ]
            )
            for one in claimed
        ]
        room.settle(*(ending for ending in endings if ending))


def expected(room: Room) -> dict[int, str]:
    """Each message's state as the rules have it, from the bare rows."""
    now = room.dialect.now
    found = {
        position: State.EXPIRED.value if outcome == "expired" else State.SENT.value
        for position, outcome in room.receipts().items()
    }
    lanes = dict(room.select(f"SELECT lane, read_to FROM {{lane}} WHERE leased_until > {now}"))
    rows = room.select(f"SELECT position, state, lane, key_hash, due <= {now}, leased_until > {now} FROM {{delivery}}")
    blockers = [(hashed, position) for position, state, _, hashed, *_ in rows if state in (2, 3)]
    for position, state, lane, hashed, due_passed, leased in rows:
        behind = any(hashed == other and at < position for other, at in blockers)
        in_lane = position <= lanes.get(lane, 0) and not behind
        found[position] = status(Stored(state), due_passed=bool(due_passed), leased=bool(leased) or in_lane).value
    return found


@pytest.mark.parametrize("seed", range(2))
def test_L_1_counts_lists_and_view_agree_with_the_rules(room: Room, seed: int) -> None:
    populate(room, seed)
    states = expected(room)
    assert set(states.values()) == set(State)
    assert room.statuses() == states
    counted = figures(room)
    for state in State:
        of_state = sorted((position for position, name in states.items() if name == state), reverse=True)
        assert getattr(counted, state.value) == len(of_state)
        assert listed(room, state, limit=1000) == of_state
    assert listed(room, limit=1000) == sorted(states, reverse=True)


def test_L_16_status_counts_what_is_held(room: Room) -> None:
    room.add(3, key="a")
    room.add(2, key="b")
    room.add(2, key="c")
    lanes = room.take_lanes()
    first = {one.message.key: one for one in reversed(room.read_lanes(lanes).messages)}
    room.settle(Dead(first["a"], "CODE", "text"), Retry(first["b"], 60, "CODE", "text"))
    counted = figures(room)
    assert (counted.held, counted.dead, counted.waiting, counted.sending, counted.pending) == (3, 1, 1, 2, 3)


def test_L_16_under_skip_the_dead_hold_nobody(room: Room) -> None:
    room.add(3, key="a")
    room.add(2, key="b")
    skipping = room.on(order=Order.SKIP)
    lanes = room.take_lanes()
    first = {one.message.key: one for one in reversed(room.read_lanes(lanes).messages)}
    room.settle(Dead(first["a"], "CODE", "text"), Retry(first["b"], 60, "CODE", "text"))
    assert len(room.run(skipping.lanes.read(lanes, 10, 30)).messages) == 2
    counted = figures(room, Order.SKIP)
    assert (counted.held, counted.sending, counted.pending) == (1, 2, 1)
    assert (figures(room).held, figures(room).sending) == (3, 0)


def test_status_shows_the_relays_that_are_alive(room: Room) -> None:
    room.run(Workers(room.names).beat("up", 16, 3))
    room.run(Workers(room.names, "handlers").beat("down", 0, 0, "connection refused"))
    room.run(Workers(room.names).beat("silent", 0, 0))
    room.select(f"UPDATE {{worker}} SET seen_at = {room.dialect.later(':ago')} WHERE worker = 'silent'", ago=-60.0)
    up, down = figures(room).workers
    assert (up.name, up.queue, up.lanes, up.in_flight, up.broker_down) == (
        "up",
        "default",
        16,
        3,
        None,
    )
    assert (down.name, down.queue, down.broker_down) == ("down", "handlers", "connection refused")
    assert up.host
    assert up.pid
    assert 0 <= up.seen_seconds_ago < 5
    assert up.started_at is not None
    assert up.started_at.utcoffset() == timedelta()


def test_status_says_how_long_the_oldest_has_waited(room: Room) -> None:
    room.add(deliver_in=600)
    assert figures(room).oldest_pending_seconds == 0
    room.add()
    room.advance(100)
    room.add()
    assert 100 <= figures(room).oldest_pending_seconds < 130
    room.claim(limit=1)
    assert 0 <= figures(room).oldest_pending_seconds < 30


def test_what_came_due_has_waited_since_then(room: Room) -> None:
    [position] = room.add(deliver_in=1000)
    room.add(key="a", deliver_in=1000)
    room.advance(1100)
    assert 100 <= figures(room).oldest_pending_seconds < 130
    room.run(room.deliveries.lanes.promote(room.take_lanes()))
    [claimed] = room.claim()
    assert claimed.position == position
    room.settle(GivenBack(claimed))
    assert 100 <= figures(room).oldest_pending_seconds < 130


def test_what_is_held_does_not_make_the_oldest(room: Room) -> None:
    """The relay keeps up: a dead letter's followers wait for an operator."""
    room.add(2, key="a")
    [claimed, _] = room.read_lanes(room.take_lanes()).messages
    room.settle(Dead(claimed, "CODE", "text"))
    room.advance(1000)
    assert figures(room).pending == 1
    assert figures(room).oldest_pending_seconds == 0


def test_messages_are_listed_newest_first_and_page_by_page(room: Room) -> None:
    added = room.add(5)
    assert listed(room, limit=2) == [added[4], added[3]]
    assert listed(room, limit=2, before=added[3]) == [added[2], added[1]]
    assert listed(room, State.PENDING, limit=2, before=added[1]) == [added[0]]
    assert listed(room, State.SENT) == []


def test_a_listed_message_shows_all_but_its_payload(room: Room) -> None:
    [sent] = room.add(topic="one", type="Created", key="a")
    [failed] = room.add(topic="two")
    [leased] = room.add(topic="three")
    lanes = room.take_lanes()
    room.settle(Sent(room.read_lanes(lanes).messages[0], "offset 7"))
    [first, _] = room.claim("worker 7")
    room.settle(Retry(first, 60, "TIMEOUT", "no answer"))
    identifiers = [str(one) for one in room.ids([sent, failed, leased])]
    third, second, first_listed = room.admin().messages()
    assert tuple(as_json(first_listed)) == COLUMNS
    assert [one.id for one in (first_listed, second, third)] == identifiers
    now = datetime.now(UTC)
    for one in (first_listed, second, third):
        assert one.created_at is not None
        assert abs((now - one.created_at).total_seconds()) < 30
        assert one.created_at.utcoffset() == timedelta()
    assert {name: getattr(first_listed, name) for name in ("position", "queue", "topic", "type", "key", "status")} == {
        "position": sent,
        "queue": "default",
        "topic": "one",
        "type": "Created",
        "key": "a",
        "status": "sent",
    }
    assert first_listed.sent_at is not None
    assert abs((now - first_listed.sent_at).total_seconds()) < 30
    assert [
        getattr(second, name) for name in ("status", "attempts", "error_code", "error_message", "owner", "sent_at")
    ] == [
        "waiting",
        1,
        "TIMEOUT",
        "no answer",
        None,
        None,
    ]
    assert second.due is not None
    assert 30 < (second.due - now).total_seconds() <= 61
    assert [getattr(third, name) for name in ("status", "owner", "error_code", "due")] == [
        "sending",
        "worker 7",
        None,
        None,
    ]
    assert third.leased_until is not None
    assert 0 < (third.leased_until - now).total_seconds() <= 31


def test_a_message_of_a_lane_shows_the_lanes_holder(room: Room) -> None:
    room.add(key="a")
    room.read_lanes(room.take_lanes("worker 7"))
    [one] = room.admin().messages()
    assert (one.status, one.owner) == ("sending", "worker 7")
    assert one.leased_until is not None


def test_all_queues_are_counted(room: Room) -> None:
    room.add()
    room.add(queue="handlers")
    room.add(2, queue="handlers", key="a")
    handlers = room.on("handlers", order=Order.SKIP)
    lanes = room.run(handlers.lanes.take("worker", 30))
    claim = room.run(handlers.lanes.read(lanes, 10, 30))
    assert figures(room).sending == len(claim.messages) == 2
    assert figures(room).pending == 2


def test_a_stranger_with_the_same_key_in_another_queue_holds_nobody(room: Room) -> None:
    room.add(queue="handlers", key="a")
    handlers = room.on("handlers")
    [claimed] = room.run(handlers.lanes.read(room.run(handlers.lanes.take("worker", 30)), 10, 30)).messages
    room.run(handlers.settlements.settle([Dead(claimed, "CODE", "text")]))
    room.add(key="a")
    assert figures(room).held == 0
    assert positions(room.read_lanes(room.take_lanes()).messages)
