"""Relaying from the write-ahead log, through the public surface, on PostgreSQL."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.delivery.stream.term import Term
from postroom.errors import IdempotencyConflict, InvalidMessage, InvalidSetting, UnusableConnection
from postroom.idempotency import Ledger, Run
from postroom.log_outbox import LogOutbox
from tests.acceptance.service import Service
from tests.acceptance.streaming import Moody, Streaming, by_key, numbered, running
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Streaming]:
    with closing(Streaming(ready_database("postgresql"))) as service:
        yield service


async def test_R_7_messages_leave_from_the_log_with_no_delivery(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        added = service.add(*numbered(500))
        await wait_for(lambda: service.is_settled(500))
    assert service.count("outbox", "streamed") == 500
    assert sorted(one.id for one in broker.messages) == sorted(one.id for one in added)
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
    first, sent = added[1], next(one for one in broker.messages if one.id == added[1].id)
    assert (sent.topic, sent.key, sent.payload, sent.headers) == (first.topic, first.key, first.payload, first.headers)
    assert sent.created_at is not None
    assert abs(sent.created_at - datetime.now(UTC)) < timedelta(minutes=5)


async def test_R_7_every_field_of_a_message_survives_the_log(service: Streaming) -> None:
    wanted = [
        Message.new(
            "Überraschung/✓",
            {"total": 1},
            key="schlüssel ✓",
            type="Created",
            aggregate_type="order",
            aggregate_id=7,
            headers={"a": 'quotes " and ✓', "b": ""},
            idempotency_key="once",
        ),
        Message.new("t", b"\x00\xff bytes"),
        Message.new("t", None, key="tombstone"),
        Message.new("t", "x" * 900_000),
    ]
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*wanted)
        service.execute("SELECT postroom.add('sql.topic', '{\"n\": 1}', key => 'k', headers => '{\"h\": \"v\"}')")
        await wait_for(lambda: service.is_settled(5))
    got = {one.id: one for one in broker.messages}
    for one in wanted:
        same = got.pop(one.id)
        for name in ("topic", "payload", "content_type", "type", "key", "aggregate_type", "aggregate_id", "headers"):
            assert getattr(same, name) == getattr(one, name), name
        assert (same.idempotency_key, same.digest) == (one.idempotency_key, one.digest)
    [by_sql] = got.values()
    assert (by_sql.topic, by_sql.key, by_sql.json(), by_sql.headers) == ("sql.topic", "k", {"n": 1}, {"h": "v"})


@pytest.mark.parametrize("ordered_prefix", [False, True], ids=["any order", "ordered prefix"])
async def test_R_7_what_fails_goes_through_the_table_and_keys_stay_in_order(
    service: Streaming, *, ordered_prefix: bool
) -> None:
    broker = Moody(4711, ordered_prefix=ordered_prefix)
    async with running(service, broker, max_attempts=1000):
        for start in range(0, 1500, 10):
            service.add(*numbered(10, start))
            if start in {300, 900}:
                broker.down = True
            if start in {500, 1000}:
                broker.down = False
        await wait_for(lambda: service.is_settled(1500))
    assert len({one.id for one in broker.messages}) == 1500
    assert {key: numbers for key, numbers in by_key(broker.messages).items() if numbers != sorted(numbers)} == {}
    assert service.count("attempt") > 100


async def test_R_7_a_dead_letter_holds_its_key_until_it_is_requeued(service: Streaming) -> None:
    broken, sent = True, []

    def publish(message: Message) -> None:
        if message.json() == 3 and broken:
            raise ValueError("cannot be sent")
        sent.append(message)

    async with running(service, publish, max_attempts=1):
        service.add(*(Message.new("t", n, key="a" if n % 2 else "b") for n in range(10)))
        await wait_for(lambda: service.status().dead == 1 and len(sent) == 6)
        service.add(Message.new("t", 11, key="a"), Message.new("t", 12, key="b"))
        await wait_for(lambda: len(sent) == 7)
        [letter] = service.dead()
        assert (letter.error_code, letter.attempts) == ("INTERNAL_ERROR", 1)
        broken = False
        service.requeue(letter)
        await wait_for(lambda: service.is_settled(12))
    assert by_key(sent) == {"a": [1, 3, 5, 7, 9, 11], "b": [0, 2, 4, 6, 8, 12]}


async def test_R_7_an_absent_broker_neither_stops_the_others_nor_holds_the_log_back(service: Streaming) -> None:
    here, away = Moody(1), Moody(2)
    away.down = True
    async with running(service, here, brokers={"far.*": away}, max_attempts=1000):
        service.add(*(Message.new("far.t" if n % 2 else "near.t", n, key=f"k{n % 5}") for n in range(400)))
        await wait_for(lambda: len({one.id for one in here.messages}) == 200)
        await wait_for(lambda: service.count("delivery") == 200)
        assert service.count("receipt") == 200
        away.down = False
        await wait_for(lambda: service.is_settled(400))
    assert {one.topic for one in here.messages} == {"near.t"}
    assert {one.topic for one in away.messages} == {"far.t"}
    assert all(numbers == sorted(numbers) for numbers in by_key(away.messages).values())


async def test_R_7_what_only_the_table_can_tell_is_sent_by_it(service: Streaming) -> None:
    broker = MemoryBroker()
    now = datetime.now(UTC)
    async with running(service, broker):
        service.add(
            Message.new("t", 1, deliver_at=now + timedelta(seconds=0.3)),
            Message.new("t", 2, expires_at=now + timedelta(hours=1), key="k"),
            Message.new("t", 3, expires_at=now - timedelta(hours=1), key="k"),
            Message.new("t", 4, key="k"),
        )
        await wait_for(lambda: service.is_settled(4))
    assert [one.json() for one in broker.messages if one.key] == [2, 4]
    assert {one.json() for one in broker.messages} == {1, 2, 4}
    assert service.status().expired == 1


async def test_R_7_a_keyed_request_is_confirmed_by_the_message_from_the_log(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        with service.engine.begin() as connection:
            decision = Ledger().begin(connection, "key-1", "0" * 64)
            assert isinstance(decision, Run)
            service.outbox.add(connection, "t", 1, ledger=decision.entry)
        await wait_for(lambda: service.is_settled(1))
    [[status]] = service.rows(f"SELECT status FROM {service.table('idempotency')}")
    assert status == "succeeded"


async def test_R_7_what_was_taken_back_is_never_sent(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(Message.new("t", "first", idempotency_key="once"))
        with service.engine.begin() as connection:
            with pytest.raises(IdempotencyConflict):
                service.outbox.add_many(
                    connection, [Message.new("t", "undone"), Message.new("t", "other", idempotency_key="once")]
                )
            service.outbox.add(connection, "t", "after it")
        with service.engine.connect() as connection:
            service.outbox.add(connection, "t", "rolled back")
            connection.rollback()
        await wait_for(lambda: service.is_settled(2))
    assert [one.payload for one in broker.messages] == [b"first", b"after it"]


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
async def test_R_7_only_postgresql_has_a_log_to_read(kind: str, ready_database: FreshDatabase) -> None:
    with closing(Service(ready_database(kind))) as service:
        with pytest.raises(InvalidSetting, match="write-ahead log"):
            await Relay(service.url, MemoryBroker(), cdc=True).run_once()
        with service.engine.begin() as connection:
            Outbox(cdc=True).add(connection, "t", 1)
        assert (await Relay(service.url, MemoryBroker()).run_once()).sent == 1


async def test_R_7_an_outbox_without_a_table(service: Streaming) -> None:
    """Its messages leave no trace, unless they were not sent at once."""
    sent: list[Message] = []
    broken = {3}

    def publish(message: Message) -> None:
        if message.json() in broken:
            raise ValueError("not now")
        sent.append(message)

    outbox = LogOutbox()
    with service.engine.begin() as connection, pytest.raises(UnusableConnection, match="relay --cdc"):
        outbox.add(connection, "t", 0)
    async with running(service, publish, max_attempts=1000):
        with service.engine.connect() as connection:
            outbox.add(connection, "t", 99)
            connection.rollback()
        for n in range(6):
            with service.engine.begin() as connection:
                outbox.add(connection, "t", n, key="k" if n % 2 else None, headers={"n": str(n)}, type="T")
        await wait_for(lambda: len(sent) == 4 and service.count("delivery") == 2)
        broken.clear()
        await wait_for(lambda: len(sent) == 6 and service.is_settled(2))
        with service.engine.begin() as connection, pytest.raises(InvalidMessage, match="idempotency_key is given"):
            outbox.add(connection, "t", idempotency_key="once")
    assert by_key(sent) == {"k": [1, 3, 5]}
    assert sorted(one.json() for one in sent) == list(range(6))
    assert {(one.headers["n"], one.type) for one in sent} == {(str(n), "T") for n in range(6)}
    assert service.count("outbox") == 2


async def test_R_7_what_is_read_while_a_heartbeat_is_late_is_not_left_behind(
    service: Streaming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader thinks that its lease has ended, but the database does not: so the term goes on."""
    broker = MemoryBroker()
    late, extend = True, Term._extend
    monkeypatch.setattr(Term, "_extend", lambda term, deadline: extend(term, 0.0 if late else deadline))
    async with running(service, broker):
        service.add(*numbered(10))
        with service.engine.begin() as connection:
            for n in range(10, 20):
                LogOutbox().add(connection, "t", n, key=f"k{n % 7}")
        await wait_for(lambda: {one.json() for one in broker.messages} == set(range(20)) and service.is_settled(20))
        late = False
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
    assert len(broker.messages) == 30
