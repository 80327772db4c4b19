"""All about one message, and why it has not left yet; and leases that have ended are freed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom.admin import Released, as_json
from postroom.errors import MessageNotFound
from postroom.rules.ordering import NO_LANE, Order
from postroom.store.outbox.leases import Dead, Duplicate, Expired, Retry, Sent
from postroom.store.outbox.workers import Workers
from tests.contract.store_drivers import Room, key_of_lane

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Settlement


def about(room: Room, position: int, order: Order = Order.HOLD) -> dict[str, Any]:
    """As JSON shows it."""
    [identifier] = room.ids([position])
    found: dict[str, Any] = as_json(room.admin(order).message(identifier))
    return found


def reason(room: Room, position: int, order: Order = Order.HOLD) -> str:
    return str(about(room, position, order)["reason"])


def beat(room: Room, worker: str, broker_down: str = "", queue: str = "default") -> None:
    room.run(Workers(room.names, queue).beat(worker, 0, 0, broker_down))


def test_a_message_that_is_not_there_is_an_error(room: Room) -> None:
    missing = uuid4()
    with pytest.raises(MessageNotFound, match=str(missing)):
        room.admin().message(missing)


def test_all_facts_but_payload_and_header_values(room: Room) -> None:
    [position] = room.add(
        payload={"card": "4711"}, key="a", type="Created", headers={"authorization": "4712"}, idempotency_key="order-7"
    )
    found = about(room, position)
    [identifier] = room.ids([position])
    assert (found["id"], found["position"], found["queue"]) == (str(identifier), position, "default")
    assert (found["topic"], found["type"], found["key"]) == ("orders", "Created", "a")
    assert (found["headers"], found["idempotency_key"]) == (["authorization"], "order-7")
    assert found["payload_bytes"] == len('{"card":"4711"}')
    assert abs((datetime.now(UTC) - found["created_at"]).total_seconds()) < 30
    assert "471" not in str({name: value for name, value in found.items() if name not in ("digest", "id")})
    assert room.admin().message(identifier, payload=True).payload == b'{"card":"4711"}'


def test_V_5_without_a_relay_nothing_leaves_and_with_one_it_is_next(room: Room) -> None:
    [here] = room.add()
    [there] = room.add(queue="handlers", key="a")
    assert (reason(room, here), reason(room, there)) == ("no_relay", "no_relay")
    beat(room, "other", queue="handlers")
    assert (reason(room, here), reason(room, there)) == ("no_relay", "next")
    beat(room, "first", "connection refused")
    found = about(room, here)
    assert found["reason"] == "broker_down"
    assert found["relays_down"] == [{"worker": "first", "broker_down": "connection refused"}]
    assert "first: connection refused" in found["explanation"]
    beat(room, "second")
    assert reason(room, here) == "next"


def test_what_is_due_later_says_when_and_why(room: Room) -> None:
    [scheduled] = room.add(deliver_in=600)
    [failed] = room.add()
    [claimed] = room.claim()
    room.settle(Retry(claimed, 60, "TIMEOUT", "no answer"))
    found = about(room, scheduled)
    assert (found["status"], found["reason"]) == ("waiting", "scheduled")
    assert 500 < (found["due"] - datetime.now(UTC)).total_seconds() <= 601
    found = about(room, failed)
    assert (found["status"], found["reason"], found["attempts"]) == ("waiting", "retry", 1)
    assert "TIMEOUT no answer" in found["explanation"]
    assert found["failed_at"] is not None
    room.advance(61)
    assert reason(room, failed) == "no_relay"


def test_what_is_leased_says_by_whom_and_until_when(room: Room) -> None:
    [position] = room.add()
    room.claim("worker 7", seconds=30)
    found = about(room, position)
    assert (found["status"], found["reason"], found["owner"], found["claims"]) == ("sending", "sending", "worker 7", 1)
    assert 0 < (found["leased_until"] - datetime.now(UTC)).total_seconds() <= 31
    assert "not alive" in found["explanation"]
    beat(room, "worker 7")
    assert "not alive" not in about(room, position)["explanation"]
    beat(room, "worker 7", "connection refused")
    assert reason(room, position) == "broker_down"
    room.advance(31)
    assert about(room, position)["owner"] is None


def test_in_a_lane_what_was_read_is_sent_and_the_rest_is_queued(room: Room) -> None:
    first, second = room.add(2, key="a")
    lanes = room.take_lanes("worker 7")
    room.read_lanes(lanes, limit=1)
    sending, queued = about(room, first), about(room, second)
    assert (sending["reason"], sending["status"], sending["owner"]) == ("sending", "sending", "worker 7")
    assert (queued["reason"], queued["status"], queued["read_to"]) == ("queued", "pending", first)
    assert "worker 7" in queued["explanation"]
    assert sending["lane"] in range(16)
    beat(room, "worker 7", "connection refused")
    assert (reason(room, first), reason(room, second)) == ("broker_down", "broker_down")


def test_L_16_what_is_held_names_its_blocker(room: Room) -> None:
    dead, failed, behind = room.add(3, key="a")
    lanes = room.take_lanes()
    [one, two, _] = room.read_lanes(lanes).messages
    room.settle(Dead(one, "REJECTED", "not wanted"), Retry(two, 60, "TIMEOUT", "no answer"))
    ids = [str(identifier) for identifier in room.ids([dead, failed])]
    blocker = about(room, behind)["blocker"]
    assert (blocker["id"], blocker["position"], blocker["status"]) == (ids[0], dead, "dead")
    assert (blocker["error_code"], blocker["error_message"]) == ("REJECTED", "not wanted")
    assert about(room, behind)["reason"] == "held"
    assert ids[0] in about(room, behind)["explanation"]
    skipping = about(room, behind, Order.SKIP)
    assert (skipping["reason"], skipping["blocker"]["id"], skipping["blocker"]["status"]) == ("held", ids[1], "failed")
    assert skipping["blocker"]["due"] is not None
    room.advance(61)
    room.settle(Sent(two))
    room.run(room.deliveries.lanes.release(lanes))
    lanes = room.take_lanes()
    room.run(room.deliveries.lanes.promote(lanes))
    assert reason(room, failed) == "held"
    assert reason(room, failed, Order.SKIP) == "queued"


@pytest.mark.parametrize("kind", [Sent, Duplicate, Expired])
def test_what_is_settled_says_how(room: Room, kind: type[Sent | Duplicate | Expired]) -> None:
    [position] = room.add()
    [claimed] = room.claim()
    settlement: Settlement = Expired(claimed) if kind is Expired else kind(claimed, "offset 7")  # type: ignore[call-arg]  # not Expired
    room.settle(settlement)
    found = about(room, position)
    word = "expired" if kind is Expired else "sent"
    assert (found["status"], found["reason"], found["owner"], found["due"]) == (word, word, None, None)
    assert found["sent_at"] is not None
    assert found["answer"] == (None if kind is Expired else "offset 7")


def test_what_is_dead_says_why(room: Room) -> None:
    [position] = room.add()
    [claimed] = room.claim()
    room.settle(Dead(claimed, "REJECTED", "not wanted"))
    found = about(room, position)
    assert (found["status"], found["reason"], found["error_code"], found["due"]) == ("dead", "dead", "REJECTED", None)
    assert found["explanation"].startswith("given up: REJECTED not wanted; ")


def test_an_error_may_be_a_code_alone(room: Room) -> None:
    [position] = room.add()
    [claimed] = room.claim()
    room.settle(Retry(claimed, 60, "TIMEOUT", ""))
    assert about(room, position)["explanation"].startswith("failed: TIMEOUT; ")


def test_a_message_without_a_delivery_is_told(room: Room) -> None:
    [position] = room.add()
    room.select("DELETE FROM {delivery}")
    assert (about(room, position)["reason"], about(room, position)["status"]) == ("no_delivery", None)


def free(room: Room) -> Released:
    return room.admin().release_expired()


def test_V_5_leases_that_have_ended_are_freed_in_all_queues(room: Room) -> None:
    ended = room.add(3)
    [elsewhere] = room.add(queue="handlers")
    room.claim("gone", seconds=30)
    room.run(room.on("handlers").rows.claim("gone", 1, 30))
    room.take_lanes("gone", seconds=30, limit=2)
    assert free(room) == Released(0, 0)
    room.advance(31)
    [running] = room.add()
    [claimed] = room.claim("alive", limit=1, after=ended[-1], due=False)
    assert claimed.position == running
    alive = room.take_lanes("alive", limit=1)
    assert free(room) == Released(4, 1)
    assert free(room) == Released(0, 0)
    for position in (*ended, elsewhere):
        row = room.delivery(position)
        assert (row.owner, row.token, row.leased_until, row.claims) == ("", 0, None, 1)
    row = room.delivery(running)
    assert (row.owner, row.token, row.lane) == ("alive", claimed.token, NO_LANE)
    assert room.select("SELECT lane, owner FROM {lane} WHERE owner <> ''") == [(alive[0].number, "alive")]
    assert room.settle(Sent(claimed)) == []


def test_the_next_holder_of_a_freed_lane_still_knows_that_the_last_was_interrupted(room: Room) -> None:
    room.add(key=key_of_lane(0))
    room.read_lanes(room.take_lanes("gone", seconds=30, limit=1))
    room.advance(31)
    assert free(room) == Released(0, 1)
    [lane] = room.take_lanes("next", limit=1)
    assert (lane.number, lane.interrupted) == (0, True)
