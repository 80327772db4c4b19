"""`Admin` and `AsyncAdmin`: one suite for both, on every driver. The suites beside it show what acts do to rows."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from postroom import Admin, AsyncAdmin, Message
from postroom.admin import ALL, Filter, QueueStatus, Refusal, Refused, as_json
from postroom.errors import InvalidSetting, SchemaMissing, UnusableConnection
from postroom.store.outbox.leases import Dead, Retry, Sent
from tests.contract.store_drivers import Room, key_of_lane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = key_of_lane(0)


def bury(room: Room, count: int = 1, code: str = "REJECTED", queue: str = "default") -> list[int]:
    """Add messages and let them die."""
    added = room.add(count, queue=queue)
    protocol = room.on(queue)
    claimed = room.run(protocol.rows.claim("worker", count, 30)).messages
    room.run(protocol.settlements.settle([Dead(one, code, "not wanted") for one in claimed]))
    return added


def methods(kind: type) -> dict[str, object]:
    return {
        name: list(inspect.signature(method).parameters.values())
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_have_the_same_methods_with_the_same_arguments() -> None:
    assert methods(Admin) == methods(AsyncAdmin)
    assert all(inspect.iscoroutinefunction(getattr(AsyncAdmin, name)) for name in methods(Admin))


def test_status_counts_by_queue_too(room: Room) -> None:
    bury(room, 2, queue="handlers")
    failed, *_ = room.add(3, key=KEY)
    [claimed] = room.read_lanes(room.take_lanes(), 1).messages
    assert claimed.position == failed
    room.settle(Retry(claimed, 60, "TIMEOUT", "no answer"))
    default, handlers = room.admin().status().queues
    assert (default.queue, default.pending, default.waiting, default.held) == ("default", 2, 1, 2)
    assert handlers == QueueStatus("handlers", dead=2)


def test_workers_and_targets_are_told_alone_as_in_the_status(room: Room) -> None:
    admin = room.admin()
    assert admin.workers() == admin.status().workers == ()
    assert as_json(admin.workers()) == as_json(admin.held_targets()) == []
    assert admin.held_targets() == admin.status().targets == ()


def test_messages_are_found_by_state_queue_topic_and_key(room: Room) -> None:
    [order] = room.add(topic="orders")
    [keyed] = room.add(topic="orders", key="a")
    [parked] = room.add(topic="orders", queue="handlers")
    [mail] = room.add(topic="mails", key="a")

    def found(**fields: str) -> list[int]:
        return [one.position for one in room.admin().messages(**fields)]  # type: ignore[arg-type]  # all are texts

    assert found() == found(status="pending") == [mail, parked, keyed, order]
    assert found(queue="handlers") == [parked]
    assert found(topic="orders") == found(topic="orders", status="pending") == [parked, keyed, order]
    assert found(key="a") == found(key="a", queue="default") == [mail, keyed]
    assert found(key="a", topic="mails") == [mail]
    assert found(status="dead", queue="default", topic="orders", key="a") == []


def test_pages_follow_each_other_until_there_is_none(room: Room) -> None:
    added = bury(room, 5)
    admin = room.admin()
    for listed in (admin.messages, admin.dead_letters):
        seen: list[int] = []
        page = listed(limit=2)
        while page.next is not None:
            seen += [one.position for one in page]
            page = listed(limit=2, before=page.next)
        assert [*seen, *(one.position for one in page)] == added[::-1]
        assert abs((datetime.now(UTC) - page.as_of).total_seconds()) < 30


def test_a_last_page_that_is_full_has_no_next(room: Room) -> None:
    bury(room, 2)
    admin = room.admin()
    assert (len(admin.messages(limit=2)), admin.messages(limit=2).next) == (2, None)
    assert (len(admin.dead_letters(limit=2)), admin.dead_letters(limit=2).next) == (2, None)
    admin.requeue(ALL, actor="ada")
    assert (len(admin.audit(limit=2)), admin.audit(limit=2).next) == (2, None)


@pytest.mark.parametrize("key", [7, UUID(int=7)], ids=["int", "UUID"])
def test_a_key_is_given_as_it_was_added(room: Room, key: int | UUID) -> None:
    [added] = room.add(key=str(key))
    room.add(key="8")
    admin = room.admin()
    assert [one.position for one in admin.messages(key=key)] == [added]
    assert admin.count_unsent(Filter(key=key)).total == 1


def test_dead_letters_are_listed_by_their_ids(room: Room) -> None:
    first, _, third = bury(room, 3)
    [pending] = room.add()
    ids = [*room.ids([first, third, pending]), uuid4()]
    assert [one.position for one in room.admin().dead_letters(Filter(ids))] == [third, first]
    assert len(room.admin().dead_letters(Filter([]))) == 0


@pytest.mark.parametrize(
    ("payload", "told"),
    [(None, {"payload": None}), ("größe", {"payload": "größe"}), (b"\xff\x00", {"payload_base64": "/wA="})],
    ids=["none", "text", "bytes"],
)
def test_json_has_a_payload_only_where_it_is_wanted(room: Room, payload: object, told: dict[str, str | None]) -> None:
    room.add_messages([Message.new("orders", payload)])
    [listed] = room.admin().messages()
    found = room.admin().message(listed.id or "", payload=True)
    plain = as_json(found)
    assert {name: value for name, value in as_json(found, payload=True).items() if name not in plain} == told


def test_an_act_as_of_a_moment_leaves_out_what_failed_since(room: Room) -> None:
    shown = bury(room, 2)
    room.advance(60)
    admin = room.admin()
    counted = admin.count_dead_letters()
    later = bury(room, 1)
    which = Filter(as_of=counted.as_of - timedelta(seconds=30))
    assert (counted.total, admin.count_dead_letters(which).total) == (2, 2)
    assert [one.position for one in admin.dead_letters(which)] == shown[::-1]
    assert list(admin.requeue(which, actor="ada").ids) == room.ids(shown)
    assert room.positions(3) == later


def test_cancelling_as_of_a_moment_leaves_out_what_was_added_since(room: Room) -> None:
    shown = room.ids(room.add(2))
    room.advance(60)
    counted = room.admin().count_unsent()
    later = room.add(2)
    which = Filter(as_of=counted.as_of - timedelta(seconds=30))
    assert list(room.admin().cancel(which, actor="ada").ids) == shown
    assert room.positions() == later


def test_every_id_is_done_or_refused_with_what_it_is(room: Room) -> None:
    [dead] = bury(room)
    [sent] = room.add()
    room.settle(Sent(room.claim()[0]))
    [half] = room.add()
    room.select(f"DELETE FROM {{delivery}} WHERE position = {half}")
    [pending] = room.add()
    [leased] = room.add(queue="handlers")
    room.run(room.on("handlers").rows.claim("worker", 1, 30))
    missing = uuid4()
    ids = room.ids([dead, sent, half, pending, leased])
    result = room.admin().requeue(Filter([*map(str, ids), missing]), actor="ada")
    assert (result.action, result.count, result.ids) == ("requeue", 1, (ids[0],))
    assert set(result.refused) == {
        Refused(ids[1], Refusal.SENT),
        Refused(ids[2], Refusal.INCOMPLETE),
        Refused(ids[3], Refusal.PENDING),
        Refused(ids[4], Refusal.SENDING),
        Refused(missing, Refusal.NOT_FOUND),
    }
    result = room.admin().cancel(Filter(ids[1:]), actor="ada")
    assert (result.count, set(result.ids)) == (2, {ids[2], ids[3]})
    assert set(result.refused) == {Refused(ids[1], Refusal.SENT), Refused(ids[4], Refusal.SENDING)}


def test_L_10_the_audit_says_who_did_what_and_why_also_of_what_is_gone(room: Room) -> None:
    first, second = bury(room, 2)
    ids = room.ids([first, second])
    admin = room.admin()
    admin.requeue(Filter(ids[:1]), actor="ada", reason="the broker is back")
    admin.discard(Filter(ids[1:]), actor="eve")
    newest, oldest = admin.audit()
    assert (newest.action, newest.actor, newest.reason, newest.message_id) == ("discard", "eve", "", str(ids[1]))
    assert (oldest.action, oldest.actor, oldest.reason) == ("requeue", "ada", "the broker is back")
    assert (oldest.position, oldest.details["error_code"]) == (first, "REJECTED")
    assert oldest.at is not None
    assert [entry.id for entry in admin.audit(message=ids[1])] == [newest.id]
    assert [entry.id for entry in admin.audit(actor="ada", action="requeue")] == [oldest.id]
    assert list(admin.audit(action="cancel")) == []
    page = admin.audit(limit=1)
    assert [entry.id for entry in admin.audit(limit=1, before=page.next)] == [oldest.id]
    assert admin.message(ids[0]).history == (oldest,)


def test_a_dead_letter_beyond_what_inboxes_remember_is_counted(room: Room) -> None:
    bury(room)
    room.advance(8 * 86_400)
    bury(room)
    counted = room.admin().count_dead_letters()
    assert (counted.total, counted.older_than_inbox) == (2, 1)


WRONG: dict[str, Callable[[Admin], object]] = {
    "ids": lambda _: Filter(ids=["seven"]),
    "no time zone": lambda _: Filter(as_of=datetime(2026, 1, 2)),  # noqa: DTZ001 - that is the mistake
    "id": lambda admin: admin.message("seven"),
    "status": lambda admin: admin.messages(status="lost"),
    "limit": lambda admin: admin.messages(limit=0),
    "limit of dead letters": lambda admin: admin.dead_letters(limit=0),
    "limit of the audit": lambda admin: admin.audit(limit=-1),
    "id in the audit": lambda admin: admin.audit(message="seven"),
    "action in the audit": lambda admin: admin.audit(action="requeu"),
    "one id": lambda _: Filter(ids=str(uuid4())),
    "one UUID": lambda _: Filter(ids=uuid4()),  # type: ignore[arg-type]  # that is the mistake
    "older than a number": lambda _: Filter(older_than=3),  # type: ignore[arg-type]  # that is the mistake
    "older than what comes": lambda _: Filter(older_than=timedelta(days=-3)),
    "settled in the future": lambda admin: admin.cleanup(days=-1),
    "marked in the future": lambda admin: admin.cleanup(inbox_days=-1),
    "audited in the future": lambda admin: admin.cleanup(audit_days=float("nan")),
    "never at work": lambda admin: admin.cleanup(load=0),
    "at work more than all the time": lambda admin: admin.cleanup(load=1.1),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_refused(room: Room, call: Callable[[Admin], object]) -> None:
    with pytest.raises(InvalidSetting):
        call(room.admin())


def test_one_that_is_closed_says_so(room: Room) -> None:
    admin = room.admin()
    admin.status()
    admin.close()
    admin.close()
    with pytest.raises(UnusableConnection, match="is closed: create another one"):
        admin.status()


@pytest.mark.parametrize("kind", [Admin, AsyncAdmin])
def test_a_file_that_is_not_there_is_not_made(kind: type[Admin | AsyncAdmin], tmp_path: Path) -> None:
    with pytest.raises(SchemaMissing, match="postroom init"):
        kind(f"sqlite:///{tmp_path}/none.db")
