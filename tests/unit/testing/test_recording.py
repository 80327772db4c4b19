"""RecordingOutbox: the outbox of a test."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from postroom import Message, Outbox
from postroom.errors import (
    DuplicateMessage,
    IdempotencyConflict,
    InvalidMessage,
    NotInTransaction,
    PayloadTooLarge,
    PostroomError,
    WrongMethod,
)
from postroom.testing import RecordingOutbox


@dataclass
class Order:
    order_id: int


def test_it_remembers_in_order_whatever_the_connection_is() -> None:
    outbox = RecordingOutbox()
    outbox.add(None, "orders.created", {"order_id": 7}, key=7)
    outbox.add_many(object(), (Message.new("mails", n) for n in range(2)))
    assert [(message.topic, message.json()) for message in outbox.messages] == [
        ("orders.created", {"order_id": 7}),
        ("mails", 0),
        ("mails", 1),
    ]
    outbox.clear()
    assert outbox.messages == []


async def test_it_remembers_what_async_code_adds() -> None:
    outbox = RecordingOutbox()
    message = await outbox.aadd(None, "orders.created", b"1")
    [other] = await outbox.aadd_many(None, [outbox.message("orders.created", b"2")])
    assert outbox.messages == [message, other]


def test_it_is_an_outbox_for_who_asks() -> None:
    assert isinstance(RecordingOutbox(), Outbox)


def test_an_assertion_gives_the_message_back() -> None:
    outbox = RecordingOutbox()
    for number in (7, 8, 8):
        outbox.add(None, "orders.created", Order(number), key=number, type="OrderCreated")
    message = outbox.assert_published("orders.created", key=7, payload={"order_id": 7}, type="OrderCreated")
    assert message is outbox.messages[0]
    assert outbox.assert_published("orders.created", payload=Order(8), count=2) == outbox.messages[1:]
    assert outbox.assert_published("orders.created", key=None, count=0) == []
    outbox.assert_not_published("orders.cancelled")


@pytest.mark.parametrize(
    ("published", "same", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}),
        (None, None, {}),
        ("text", "text", "other"),
        (b"\xff", b"\xff", b"\xfe"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, {"at": "2030-01-01T00:00:00Z"}, {"at": None}),
        (7, 7, "7"),
    ],
)
def test_payloads_are_compared_as_they_would_be_sent(published: Any, same: Any, other: Any) -> None:
    outbox = RecordingOutbox()
    outbox.add(None, "t", published)
    outbox.assert_published("t", payload=same)
    outbox.assert_published("t", payload=other, count=0)


def test_a_failing_assertion_says_what_was_wanted_and_what_there_was() -> None:
    outbox = RecordingOutbox()
    with pytest.raises(AssertionError) as nothing:
        outbox.assert_published("orders.created")
    assert str(nothing.value) == "expected one message, found 0: 'orders.created'\nnothing was published"
    outbox.add(None, "orders.created", {"order_id": 7}, key=7, type="OrderCreated")
    outbox.add(None, "mails", "x" * 500)
    outbox.add(None, "mails", b"\xff")
    outbox.add(None, "gone")
    with pytest.raises(AssertionError) as wrong_key:
        outbox.assert_published("orders.created", key=8, payload={"order_id": 8})
    assert str(wrong_key.value).splitlines() == [
        "expected one message, found 0: 'orders.created' key=8 payload={'order_id': 8}",
        "published:",
        """  1. 'orders.created' key='7' type='OrderCreated' payload={"order_id":7}""",
        f"  2. 'mails' payload={'x' * 120}…",
        r"  3. 'mails' payload=\xff",
        "  4. 'gone' payload=None",
    ]


def test_more_than_one_must_be_asked_for() -> None:
    outbox = RecordingOutbox()
    outbox.add_many(None, [Message.new("mails", n) for n in range(2)])
    with pytest.raises(AssertionError, match=r"^expected one message, found 2; use count= to expect more: 'mails'"):
        outbox.assert_published("mails")
    with pytest.raises(AssertionError, match=r"^expected 3 messages, found 0: 'mails' type='M'"):
        outbox.assert_published("mails", type="M", count=3)
    with pytest.raises(AssertionError, match=r"^expected 0 messages, found 2: 'mails'"):
        outbox.assert_not_published("mails")


def real(connection: sqlite3.Connection) -> tuple[Outbox, object]:
    return Outbox(max_payload_bytes=100), connection


def recording(_: sqlite3.Connection) -> tuple[Outbox, object]:
    return RecordingOutbox(max_payload_bytes=100), None


def wrapping(connection: sqlite3.Connection) -> tuple[Outbox, object]:
    return RecordingOutbox(Outbox(max_payload_bytes=100)), connection


ID = UUID("0197f3c1-8a50-7cc3-9d2e-0b7a5c1f4e11")
REFUSED: list[tuple[type[PostroomError], list[dict[str, Any]]]] = [
    (InvalidMessage, [{"topic": ""}]),
    (InvalidMessage, [{"topic": "t", "deliver_at": datetime(2030, 1, 1)}]),  # noqa: DTZ001 - without a time zone
    (PayloadTooLarge, [{"topic": "t", "payload": b"x" * 101}]),
    (DuplicateMessage, [{"topic": "t", "id": ID}, {"topic": "t", "id": ID}]),
    (
        IdempotencyConflict,
        [{"topic": "t", "idempotency_key": "k"}, {"topic": "t", "payload": 1, "idempotency_key": "k"}],
    ),
]


@pytest.mark.parametrize("kind", [real, recording, wrapping])
@pytest.mark.parametrize(("error", "messages"), REFUSED)
def test_it_refuses_what_the_real_one_refuses(
    kind: Any, error: type[PostroomError], messages: list[dict[str, Any]], postroom_database: str
) -> None:
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        outbox, given = kind(connection)
        for fields in messages[:-1]:
            outbox.add(given, **fields)
        with pytest.raises(error):
            outbox.add(given, **messages[-1])
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        outbox, given = kind(connection)
        with pytest.raises(error):
            outbox.add_many(given, [Message.new(**fields) for fields in messages])
        if isinstance(outbox, RecordingOutbox):
            assert outbox.messages == []


@pytest.mark.parametrize("kind", [real, recording, wrapping])
def test_O_3_an_idempotency_key_counts_once(kind: Any, postroom_database: str) -> None:
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        outbox, given = kind(connection)
        first = outbox.add(given, "t", 1, idempotency_key="k")
        again = outbox.add(given, "t", 1, idempotency_key="k")
        [third, fourth] = outbox.add_many(given, [Message.new("t", 2, idempotency_key="l") for _ in range(2)])
        assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
        assert (fourth.id, fourth.duplicate, third.duplicate) == (third.id, True, False)
        if isinstance(outbox, RecordingOutbox):
            assert outbox.messages == [first, third]


def test_messages_that_were_not_made_with_new_are_refused() -> None:
    message = Message(id=ID, topic="t", payload=None, content_type="x")
    with pytest.raises(InvalidMessage, match=r"Message\.new"):
        RecordingOutbox().add_many(None, [message])


def test_the_mask_is_the_recording_outbox_s_or_that_of_the_wrapped_one(postroom_database: str) -> None:
    def mask(topic: str, payload: Any) -> Any:
        return {**payload, "card": topic}

    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        for outbox in (RecordingOutbox(mask=mask), RecordingOutbox(Outbox(mask=mask))):
            outbox.add(connection, "t", {"card": "4111"})
            outbox.add_many(connection, [outbox.message("t", {"card": "4111"})])
            outbox.assert_published("t", payload={"card": "t"}, count=2)


def test_the_routes_are_the_recording_outbox_s_or_those_of_the_wrapped_one(postroom_database: str) -> None:
    routes = {"OrderCreated": "orders.created"}
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        for outbox in (RecordingOutbox(routes=routes), RecordingOutbox(Outbox(routes=routes))):
            outbox.add(connection, None, type="OrderCreated")
            outbox.assert_published("orders.created", type="OrderCreated")


def test_around_a_real_outbox_it_writes_too(postroom_database: str) -> None:
    outbox = RecordingOutbox(Outbox())
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection, connection:
        outbox.add(connection, "t", 1)
        outbox.add_many(connection, [Message.new("t", 2)])
        assert connection.execute("SELECT count(*) FROM postroom_outbox").fetchone() == (2,)
    outbox.assert_published("t", count=2)


async def test_around_a_real_outbox_async_connections_work_and_wrong_ones_are_refused(postroom_database: str) -> None:
    import aiosqlite

    outbox = RecordingOutbox(Outbox())
    async with aiosqlite.connect(postroom_database.removeprefix("sqlite:///")) as connection:
        await outbox.aadd(connection, "t", 1)
        await outbox.aadd_many(connection, [Message.new("t", 2)])
        with pytest.raises(WrongMethod, match=r"outbox\.aadd"):
            outbox.add(connection, "t", 3)
    outbox.assert_published("t", count=2)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as autocommit, pytest.raises(NotInTransaction):
        outbox.add(autocommit, "t")
