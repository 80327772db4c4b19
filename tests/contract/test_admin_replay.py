"""Edit and replay, timelines and views on record, on every database."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from postroom import Message
from postroom.admin import Filter, TimelineKind, WhyNotSent, as_json
from postroom.errors import DuplicateMessage, InvalidMessage, MessageNotFound, PayloadTooLarge, ReplayRefused
from postroom.rules.naming import LEDGER, REPLAY_OF
from postroom.store.outbox.leases import Dead, Retry, Sent
from postroom.store.outbox.parking import Failed, Parking
from tests.contract.store_drivers import Room, key_of_lane, only_on
from tests.contract.stored_sagas import Sagas


def dead_letter(room: Room, **fields: Any) -> str:
    [position] = room.add(**{"payload": {"a": 1}, "headers": {"tenant": "7"}, **fields})
    claimed = room.read_lanes(room.take_lanes()).messages if "key" in fields else room.claim()
    room.settle(Dead(claimed[0], "REJECTED", "not wanted"))
    [one] = room.ids([position])
    return str(one)


def test_V_6_a_changed_copy_is_added_beside_the_original(room: Room) -> None:
    admin = room.admin()
    original = dead_letter(room, type="order.placed", idempotency_key="k-1")
    done = admin.replay(original, actor="ada", reason="typo", payload='{"a": 2}', headers={"x": "1"}, topic="other")
    copy, kept = admin.message(done.id, payload=True, headers=True), admin.message(original, payload=True, headers=True)
    assert (str(done.original), done.discarded, copy.replay_of) == (original, False, original)
    assert (copy.payload, copy.topic, copy.type, copy.content_type) == (
        *(b'{"a": 2}', "other", "order.placed", "application/json"),
    )
    assert (copy.header_values, copy.idempotency_key) == ({"x": "1", REPLAY_OF: original}, None)
    assert (kept.status, kept.payload, kept.header_values) == ("dead", b'{"a":1}', {"tenant": "7"})
    assert admin.message(original).header_values is None
    [replay] = admin.audit(action="replay")
    [replayed] = admin.audit(action="replayed")
    assert (replay.message_id, replay.actor, replay.reason) == (original, "ada", "typo")
    assert dict(replay.details) == {
        "topic": "orders",
        "changed": ["topic", "headers", "payload"],
        "new_id": str(done.id),
    }
    assert (replayed.message_id, replayed.details["original"]) == (str(done.id), original)
    assert [one.message.id for one in room.claim()] == [done.id]
    again = admin.message(admin.replay(done.id, actor="ada").id, payload=True, headers=True)
    assert (again.payload, again.replay_of, again.header_values) == (
        *(b'{"a": 2}', str(done.id), {"x": "1", REPLAY_OF: str(done.id)}),
    )
    assert as_json(again, payload=True)["header_values"] == again.header_values


def test_V_6_the_original_goes_in_the_same_act_if_that_is_wanted(room: Room) -> None:
    admin = room.admin()
    key = key_of_lane(3)
    original = dead_letter(room, key=key)
    kept = admin.replay(original, actor="ada")
    assert admin.message(kept.id).why.reason is WhyNotSent.HELD
    with pytest.raises(DuplicateMessage):
        admin.replay(original, actor="ada", discard_original=True, new_id=kept.id)
    assert admin.message(original).status == "dead"
    done = admin.replay(original, actor="ada", payload={"a": 3}, discard_original=True, new_id=(new_id := uuid4()))
    assert (done.discarded, done.id) == (True, new_id)
    with pytest.raises(MessageNotFound):
        admin.message(original)
    assert room.select("SELECT count(*) FROM {attempt}") == [(0,)]
    assert [one.action for one in admin.audit(message=original)] == ["discard", "replay", "replay"]
    assert [one.message.key for one in room.read_lanes(room.take_lanes("other", seconds=60)).messages] in (
        [key, key],
        [],
    )
    with pytest.raises(ReplayRefused, match="not dead"):
        admin.replay(done.id, actor="ada", discard_original=True)
    assert len(admin.messages()) == 2


def test_V_6_what_a_copy_may_not_be_is_refused(room: Room) -> None:
    admin = room.admin()
    original = dead_letter(room)
    for wrong, problem in (
        ({"payload": "{"}, "not JSON"),
        ({"payload": object()}, "cannot become JSON"),
        ({"topic": ""}, "topic is empty"),
        ({"headers": {"Postroom_Ledger": "x"}}, "Postroom's own"),
        ({"headers": {"x": 1}}, "must be a str"),
    ):
        with pytest.raises(InvalidMessage, match=problem):
            admin.replay(original, actor="ada", **wrong)
    with pytest.raises(PayloadTooLarge):
        admin.replay(original, actor="ada", payload=b'"' + b"x" * 2_000_000 + b'"')
    sagas = Sagas(room)
    [[saga]] = room.select("SELECT id FROM {outbox} WHERE position = :one", one=sagas.start())
    with pytest.raises(ReplayRefused, match="belongs to a saga"):
        admin.replay(str(saga), actor="ada")
    room.add(queue="twophase", topic="twophase")
    [recovery, *_] = admin.messages(queue="twophase")
    assert recovery.id is not None
    with pytest.raises(ReplayRefused, match="two-phase"):
        admin.replay(recovery.id, actor="ada")
    assert [one.action for one in admin.audit()] == []


@only_on("sqlite3", "psycopg", "pymysql")
def test_V_6_a_copy_does_not_answer_for_the_keyed_request_of_its_original(room: Room) -> None:
    message = Message.new("orders", None)
    message.headers[LEDGER] = '["scope","key","digest"]'  # type: ignore[index]  # as `Outbox.add` does with an entry
    room.add_messages([message])
    copy = room.admin().message(room.admin().replay(message.id, actor="ada").id, payload=True)
    assert (copy.headers, copy.payload) == ((REPLAY_OF,), None)


def test_V_6_the_timeline_has_every_attempt_that_failed(room: Room) -> None:
    admin = room.admin()
    [position] = room.add()
    [identifier] = room.ids([position])
    room.settle(Retry(room.claim("one")[0], 60, "TIMEOUT", "no answer"))
    room.advance(61)
    room.settle(Dead(room.claim("two")[0], "REJECTED", "not wanted"))
    failed = admin.message(identifier).timeline
    assert [(one.what, one.code, one.worker) for one in failed] == [
        (TimelineKind.ADDED, None, None),
        (TimelineKind.ATTEMPT, "TIMEOUT", "one"),
        (TimelineKind.ATTEMPT, "REJECTED", "two"),
        (TimelineKind.DEAD, "REJECTED", None),
    ]
    assert [one.text for one in failed[1:3]] == ["attempt 1 failed", "attempt 2 failed"]
    room.advance(1)
    admin.requeue(Filter(ids=[identifier]), actor="ada", reason="again")
    admin.record_view(identifier, actor="eve", what="headers")
    room.advance(1)
    room.settle(Sent(room.claim()[0], "ok"))
    told = admin.message(identifier).timeline
    assert [one.what for one in told[3:]] == [TimelineKind.ACT, TimelineKind.ACT, TimelineKind.SENT]
    assert [(one.action, one.actor, one.detail) for one in told[3:5]] == [
        *(("requeue", "ada", "again"), ("shown", "eve", None)),
    ]
    assert told[-1].detail == "ok"
    assert as_json(admin.message(identifier))["timeline"][0]["what"] == "added"
    [shown] = admin.audit(action="shown")
    assert (shown.details["what"], shown.message_id) == ("headers", str(identifier))
    room.advance(10)
    admin.cleanup(days=0)
    assert room.select("SELECT count(*) FROM {attempt}") == [(0,)]


def test_V_6_attempts_are_kept_by_lane_with_a_ledger_and_for_what_is_parked(room: Room) -> None:
    room.add(key=key_of_lane(2))
    message = Message.new("orders", None)
    message.headers[LEDGER] = '["scope","key","digest"]'  # type: ignore[index]  # as `Outbox.add` does with an entry
    room.add_messages([message])
    room.settle(Retry(room.read_lanes(room.take_lanes("one")).messages[0], 60, "TIMEOUT", "no answer"))
    room.settle(Dead(room.claim("two")[0], "REJECTED", "not wanted"))
    parked = Message.new("orders", None)
    room.run(Parking(room.names, "handler:billing").park(parked, Failed("ValueError", "bad", 60)))
    found = room.select("SELECT attempt, worker, error_code FROM {attempt} ORDER BY position")
    assert found == [(1, "one", "TIMEOUT"), (1, "two", "REJECTED"), (1, "", "ValueError")]
