"""Rerouting: deliveries go from one queue into others by their topics, where nobody has them, and keep their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.admin import Filter
from postroom.rules.routing import Routing
from postroom.store.outbox.leases import Dead, GivenBack, Rerouted, Retry, Sent
from postroom.store.outbox.rerouting import Rerouting
from postroom.store.outbox.workers import Workers
from postroom.store.sql.steps import Query
from tests.contract.store_drivers import Room, key_of_lane, only_with_row_locks, positions

if TYPE_CHECKING:
    from uuid import UUID

    from postroom.store.outbox.leases import Claimed, Lane
    from postroom.store.outbox.queue_store import QueueStore
    from postroom.store.outbox.rerouting import Cursors

PAYMENTS, OTHERS = "topic:payments.*", "topic:*"
ROUTING = Routing(["payments.*"])
KEY = key_of_lane(3)


def reroute(room: Room, queue: str = "default") -> dict[str, int]:
    return room.run(Rerouting(room.names, queue).reroute(ROUTING.queue_of)).moved


def queues(room: Room) -> dict[int, str]:
    return dict(room.select("SELECT position, queue FROM {delivery}"))


def lanes_of(room: Room, queue: str) -> tuple[QueueStore, list[Lane]]:
    protocol = room.on(queue)
    return protocol, room.run(protocol.lanes.take("worker", 30))


def read(room: Room, queue: str) -> list[int]:
    protocol, lanes = lanes_of(room, queue)
    claim = room.run(protocol.lanes.read(lanes, 100, 30))
    room.run(protocol.lanes.release(lanes))
    return positions(claim.messages)


def claim_from(room: Room, queue: str) -> list[Claimed]:
    return room.run(room.on(queue).rows.claim("worker", 100, 30)).messages


def id_of(room: Room, position: int) -> UUID:
    [identifier] = room.ids([position])
    return identifier


class TestRefiled:
    def test_a_claimed_message_moves_and_nothing_is_counted(self, room: Room) -> None:
        [position] = room.add(topic="payments.x")
        [claimed] = room.claim()
        assert room.settle(Rerouted(claimed, PAYMENTS)) == []
        row = room.delivery(position)
        assert (row.queue, row.state, row.attempts, row.claims) == (PAYMENTS, 0, 0, 0)
        assert (row.token, row.owner, row.leased_until) == (0, "", None)
        assert room.claim() == []
        assert positions(claim_from(room, PAYMENTS)) == [position]

    def test_messages_of_a_lane_move_and_keep_their_order(self, room: Room) -> None:
        added = room.add(3, topic="payments.x", key=KEY)
        claimed = room.read_lanes(room.take_lanes()).messages
        assert room.settle(*(Rerouted(one, PAYMENTS) for one in reversed(claimed))) == []
        assert set(queues(room).values()) == {PAYMENTS}
        assert read(room, PAYMENTS) == added

    def test_several_queues_and_other_settlements_may_come_together(self, room: Room) -> None:
        room.add(4)
        first, second, third, fourth = room.claim()
        settled = (Rerouted(first, PAYMENTS), Rerouted(second, OTHERS), Sent(third), GivenBack(fourth))
        assert room.settle(*settled) == []
        assert queues(room) == {first.position: PAYMENTS, second.position: OTHERS, fourth.position: "default"}

    def test_L_5_one_whose_lease_was_lost_stays_where_it_is(self, room: Room) -> None:
        room.add(2, topic="payments.x")
        lost, kept = room.claim(seconds=30)
        room.advance(31)
        [again, _] = room.claim("other")
        assert room.settle(Rerouted(lost, PAYMENTS), Rerouted(kept, PAYMENTS)) == [lost, kept]
        assert set(queues(room).values()) == {"default"}
        assert room.settle(Rerouted(again, PAYMENTS)) == []

    def test_L_5_one_whose_lane_was_lost_stays_where_it_is(self, room: Room) -> None:
        [position] = room.add(topic="payments.x", key=KEY)
        [claimed] = room.read_lanes(room.take_lanes(seconds=30)).messages
        room.advance(31)
        room.take_lanes("other")
        assert room.settle(Rerouted(claimed, PAYMENTS)) == [claimed]
        assert queues(room) == {position: "default"}


class TestSorting:
    def test_each_topic_goes_into_the_queue_of_its_pattern(self, room: Room) -> None:
        [payment] = room.add(topic="payments.x")
        [order] = room.add(topic="orders", key=KEY)
        [keyed] = room.add(topic="payments.y", key=KEY)
        assert reroute(room) == {PAYMENTS: 2, OTHERS: 1}
        assert queues(room) == {payment: PAYMENTS, order: OTHERS, keyed: PAYMENTS}
        assert reroute(room) == {}

    def test_it_is_known_whether_there_is_anything_to_reroute(self, room: Room) -> None:
        rerouting = Rerouting(room.names, "default")
        assert not room.run(rerouting.anything())
        room.add(deliver_in=60)
        assert room.run(rerouting.anything())

    def test_state_and_counts_stay_as_they_are(self, room: Room) -> None:
        failed, dead, scheduled = room.add(1), room.add(1), room.add(1, deliver_in=60)
        first, second = room.claim()
        room.settle(Retry(first, 60, "TIMEOUT", "no answer"), Dead(second, "NO", "no"))
        before = {one: room.delivery(one) for [one] in (failed, dead, scheduled)}
        assert reroute(room) == {OTHERS: 3}
        assert {one: room.delivery(one) for one in before} == {
            one: row._replace(queue=OTHERS) for one, row in before.items()
        }

    def test_what_is_under_a_lease_stays(self, room: Room) -> None:
        room.add(topic="payments.x")
        room.add(topic="payments.x", key=KEY)
        [claimed], lanes = room.claim(), room.take_lanes()
        assert reroute(room) == {}
        room.settle(GivenBack(claimed))
        assert reroute(room) == {PAYMENTS: 1}
        room.run(room.deliveries.lanes.release(lanes))
        assert reroute(room) == {PAYMENTS: 1}

    def test_a_lease_that_has_ended_is_no_more(self, room: Room) -> None:
        [position] = room.add(topic="payments.x")
        [claimed] = room.claim(seconds=30)
        room.advance(31)
        assert reroute(room) == {PAYMENTS: 1}
        row = room.delivery(position)
        assert (row.token, row.owner, row.leased_until) == (0, "", None)
        assert room.settle(Sent(claimed)) == [claimed]

    def test_a_delivery_without_a_message_goes_to_the_rest(self, room: Room) -> None:
        [position] = room.add(topic="payments.x")
        room.select(f"DELETE FROM {{outbox}} WHERE position = {position}")
        assert reroute(room) == {OTHERS: 1}

    def test_a_queue_that_nobody_ever_served_can_be_rerouted(self, room: Room) -> None:
        [position] = room.add(queue=OTHERS, topic="payments.x", key=KEY)
        assert reroute(room, OTHERS) == {PAYMENTS: 1}
        assert queues(room) == {position: PAYMENTS}

    @only_with_row_locks
    def test_what_is_claimed_while_it_is_looked_at_stays(self, room: Room) -> None:
        [position] = room.add(queue=OTHERS, topic="payments.x")
        protocol = room.on(OTHERS)

        def claim_meanwhile(topic: str) -> str:
            room.producer.run(protocol.rows.claim("worker", 1, 30))
            return ROUTING.queue_of(topic)

        room.run(Rerouting(room.names, OTHERS).reroute(claim_meanwhile, {}))
        assert queues(room) == {position: OTHERS}

    def test_it_can_look_at_all_of_a_queue_of_which_most_stays(
        self, room: Room, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("postroom.store.outbox.rerouting.CHUNK", 2)
        for key in (None, KEY):
            room.add(3, queue=OTHERS, topic="orders", key=key)
            room.add(2, queue=OTHERS, topic="payments.x", key=key)
        rerouting = Rerouting(room.names, OTHERS)
        seen: Cursors = {}
        moved, rounds, more = 0, 0, True
        while more:
            walked = room.run(rerouting.reroute(ROUTING.queue_of, seen))
            seen |= walked.seen
            moved += walked.moved.get(PAYMENTS, 0)
            rounds, more = rounds + 1, bool(walked.seen)
        assert (moved, rounds) == (4, 4)
        assert sorted(queues(room).values()) == [OTHERS] * 6 + [PAYMENTS] * 4

    @only_with_row_locks
    def test_what_another_works_on_is_passed_over(self, room: Room) -> None:
        room.add(topic="payments.x")
        [locked] = room.add(topic="payments.x")
        with room.producer.session() as execute:
            execute(Query(room.dialect.begin))
            only = f"state = 0 AND queue = 'default' AND lane = -1 AND position = {locked}"
            execute(Query(f"SELECT 1 FROM {room.tables['delivery']} WHERE {only} FOR UPDATE"))
            assert reroute(room) == {PAYMENTS: 1}
            execute(Query("ROLLBACK"))
        assert reroute(room) == {PAYMENTS: 1}


class TestOrder:
    def test_what_stands_behind_an_unrouted_message_in_its_lane_waits_for_it(self, room: Room) -> None:
        """A producer that knows the patterns added the second, one that does not the first."""
        [first] = room.add(topic="payments.x", key=KEY)
        [second] = room.add(topic="payments.x", key=KEY, queue=PAYMENTS)
        [elsewhere] = room.add(topic="payments.x", key=key_of_lane(4), queue=PAYMENTS)
        assert read(room, PAYMENTS) == [elsewhere]
        reroute(room)
        assert read(room, PAYMENTS) == [first, second, elsewhere]

    @pytest.mark.parametrize("delay", [60, None], ids=["failed", "dead"])
    def test_what_failed_before_it_was_routed_holds_its_key(self, room: Room, delay: float | None) -> None:
        room.add(topic="payments.x", key=KEY)
        lanes = room.take_lanes()
        [claimed] = room.read_lanes(lanes).messages
        room.settle(Retry(claimed, delay, "NO", "no") if delay else Dead(claimed, "NO", "no"))
        room.run(room.deliveries.lanes.release(lanes))
        room.add(topic="payments.x", key=KEY, queue=PAYMENTS)
        assert read(room, PAYMENTS) == []
        reroute(room)
        assert read(room, PAYMENTS) == []

    def test_what_is_brought_back_into_a_lane_is_not_passed_by(self, room: Room) -> None:
        """Its reader, in another process, may have come further already."""
        [back] = room.add(topic="payments.x", key=KEY, queue=PAYMENTS)
        [newer] = room.add(topic="payments.x", key=KEY)
        lanes = room.take_lanes()
        room.run(Rerouting(room.names, PAYMENTS).reroute(lambda _: "default"))
        claim = room.read_lanes(lanes, after={3: back})
        assert (claim.messages, claim.freed) == ([], [3])
        room.run(room.deliveries.lanes.look_back(lanes))
        assert positions(room.read_lanes(lanes).messages) == [back, newer]

    def test_what_is_scheduled_and_unrouted_holds_nothing(self, room: Room) -> None:
        room.add(topic="payments.x", key=KEY, deliver_in=60)
        added = room.add(topic="payments.x", key=KEY, queue=PAYMENTS)
        assert read(room, PAYMENTS) == added

    def test_a_reader_of_routed_messages_never_knows_what_is_safe(self, room: Room) -> None:
        ages = room.run(room.on(PAYMENTS).lanes.ages())
        assert ages.youngest > ages.oldest


class TestWhereItIsFound:
    def test_a_routed_message_is_found_and_listed_in_its_queue(self, room: Room) -> None:
        [position] = room.add(topic="payments.x", key=KEY)
        reroute(room)
        room.run(Workers(room.names, PAYMENTS).beat("relay", 0, 0, "connection refused"))
        found = room.admin().message(id_of(room, position))
        assert (found.queue, found.delivery is not None) == (PAYMENTS, True)
        assert [worker.broker_down for worker in found.why.workers_down] == ["connection refused"]
        [listed] = room.admin().messages(limit=10)
        assert (listed.queue, listed.status) == (PAYMENTS, "pending")

    def test_a_dead_letter_is_requeued_and_discarded_where_it_is(self, room: Room) -> None:
        [first, second] = room.add(2, topic="payments.x")
        room.settle(*(Dead(one, "NO", "no") for one in room.claim()))
        reroute(room)
        admin = room.admin()
        assert [letter.queue for letter in admin.dead_letters()] == [PAYMENTS, PAYMENTS]
        requeued = admin.requeue(Filter(ids=[id_of(room, first)]), actor="ada")
        assert list(requeued.ids) == [id_of(room, first)]
        assert room.delivery(first).queue == PAYMENTS
        discarded = admin.discard(Filter(ids=[id_of(room, second)]), actor="ada")
        assert discarded.count == 1
        assert positions(claim_from(room, PAYMENTS)) == [first]


def test_a_relay_says_for_each_of_its_queues_that_it_is_alive(room: Room) -> None:
    for queue in ("default", PAYMENTS):
        assert room.run(Workers(room.names, queue).beat("relay", 0, 0)) == 1
    assert room.run(Workers(room.names).served()) == {"default", PAYMENTS}
    room.run(Workers(room.names, PAYMENTS).leave("relay"))
    assert room.run(Workers(room.names).served()) == {"default"}
    room.select(f"UPDATE {{worker}} SET seen_at = {room.dialect.never}")
    assert room.run(Workers(room.names).served()) == set()
