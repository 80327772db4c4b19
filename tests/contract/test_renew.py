"""Renewal: leases of messages and lanes are extended together, and what is lost is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.outbox.leases import Claimed, Lane, Renewal, Sent
from postroom.store.sql.steps import Query
from tests.contract.store_drivers import Room, key_of_lane, lost_by, only_on, only_with_row_locks, positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.connections.stores import Store
    from postroom.store.sql.steps import Steps


def renew(
    room: Room, claimed: Sequence[Claimed] = (), lanes: Sequence[Lane] = (), seconds: float = 30
) -> tuple[list[Claimed], list[Lane]]:
    return lost_by(room.run(room.deliveries.renewals.renew(claimed, lanes, seconds)))


def test_nothing_to_renew_loses_nothing(room: Room) -> None:
    assert renew(room) == ([], [])


def test_L_5_renewal_extends_leases_of_messages_and_of_lanes(room: Room) -> None:
    room.add(3)
    claimed = room.claim()
    lanes = room.take_lanes()
    for _ in range(3):
        room.advance(20)
        assert renew(room, claimed, lanes) == ([], [])
    room.advance(20)
    assert room.claim("other") == []
    assert room.take_lanes("other") == []
    assert room.settle(*map(Sent, claimed)) == []


def test_L_5_renewal_counts_from_now(room: Room) -> None:
    added = room.add(2)
    [first, _] = room.claim(seconds=60)
    assert renew(room, [first], seconds=10) == ([], [])
    room.advance(11)
    assert positions(room.claim("other")) == added[:1]


def test_L_5_an_expired_lease_is_lost_and_not_revived(room: Room) -> None:
    added = room.add(2)
    claimed = room.claim()
    lanes = room.take_lanes(limit=2)
    room.advance(31)
    assert renew(room, claimed, lanes) == (claimed, lanes)
    assert positions(room.claim("other")) == added
    assert len(room.take_lanes("other")) == 16


def test_L_5_what_another_claimed_is_lost_and_the_rest_renewed(room: Room) -> None:
    added = room.add(3)
    [first, *rest] = room.claim("slow", seconds=20)
    assert renew(room, rest, seconds=60) == ([], [])
    [lane, *others] = room.take_lanes("slow", seconds=20)
    assert renew(room, [], others, seconds=60) == ([], [])
    room.advance(21)
    [taken] = room.claim("quick", seconds=20)
    [taken_lane] = room.take_lanes("quick", seconds=20)
    before = room.delivery(added[0])
    assert renew(room, [first, *rest], [lane, *others], seconds=600) == ([first], [lane])
    assert room.delivery(added[0]) == before
    assert renew(room, [taken], [taken_lane]) == ([], [])
    room.advance(500)
    assert room.settle(*map(Sent, rest)) == []


def test_L_3_of_two_claims_of_one_message_only_the_lost_one_is_lost(room: Room) -> None:
    room.add()
    [earlier] = room.claim()
    [earlier_lane] = room.take_lanes(limit=1)
    room.advance(31)
    [later] = room.claim()
    [later_lane] = room.take_lanes(limit=1)
    assert renew(room, [earlier, later], [earlier_lane, later_lane]) == ([earlier], [earlier_lane])


def test_what_the_worker_settled_itself_is_reported_too(room: Room) -> None:
    room.add(2)
    [first, second] = room.claim()
    room.settle(Sent(first))
    assert renew(room, [first, second]) == ([first], [])


@only_with_row_locks
def test_L_5_a_row_that_somebody_works_on_neither_blocks_the_heartbeat_nor_is_lost(
    room: Room, neighbour: Store
) -> None:
    added = room.add(2)
    claimed = room.claim(seconds=20)
    [first_lane, second_lane] = room.take_lanes(seconds=20, limit=2)
    with neighbour.session() as execute:
        execute(Query("BEGIN"))
        execute(
            Query(
                f"SELECT 1 FROM {room.tables['delivery']} WHERE state = 0 AND queue = 'default' AND lane = -1 "
                f"AND position = {added[0]} FOR UPDATE"
            )
        )
        execute(
            Query(
                f"SELECT 1 FROM {room.tables['lane']} WHERE queue = 'default' AND lane = {first_lane.number} FOR UPDATE"
            )
        )
        assert renew(room, claimed, [first_lane, second_lane], seconds=60) == ([], [])
        execute(Query("ROLLBACK"))
    # Passed over means not extended: what was not locked outlives it.
    room.advance(30)
    assert renew(room, claimed, [first_lane, second_lane]) == (claimed[:1], [first_lane])


@only_on("postgresql")
def test_L_5_renewal_is_one_statement_for_all(room: Room) -> None:
    room.add(3)
    room.add(key=key_of_lane(3))
    claimed, lanes = room.claim(), room.take_lanes()
    statements: list[Query] = []

    def counted(steps: Steps[Renewal]) -> Steps[Renewal]:
        query = next(steps)
        while True:
            statements.append(query)
            try:
                query = steps.send((yield query))
            except StopIteration as end:
                renewal: Renewal = end.value
                return renewal

    assert lost_by(room.run(counted(room.deliveries.renewals.renew(claimed, lanes, 30)))) == ([], [])
    assert len(statements) == 1
