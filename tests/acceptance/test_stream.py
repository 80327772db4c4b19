"""Relaying from the write-ahead log, through the public surface, on PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome, Refused, Unreached
from postroom.delivery.stream.term import Term
from postroom.errors import IdempotencyConflict, InvalidMessage, InvalidSetting, UnusableConnection
from postroom.idempotency import Ledger, Run
from postroom.log_outbox import LogOutbox
from postroom.telemetry.events import Event, StreamChanged
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tests.conftest import FreshDatabase

QUICK: dict[str, Any] = {"poll_interval_sec": 0.02, "lane_lease_sec": 2, "lock_lease_sec": 5, "backoff_sec": [0.05]}


class Streaming(Service):
    """A service whose outbox writes to the stream."""

    outbox = Outbox(cdc=True)

    def add(self, *messages: Message) -> list[Message]:
        with self.engine.begin() as connection:
            return self.outbox.add_many(connection, messages)

    def count(self, table: str, where: str = "true") -> int:
        return int(str(self.rows(f"SELECT count(*) FROM {self.table(table)} WHERE {where}")[0][0]))

    def mode(self) -> str:
        return str(self.rows(f"SELECT mode FROM {self.table('stream')}")[0][0])

    def reader(self) -> str:
        return str(self.rows(f"SELECT owner FROM {self.table('stream')}")[0][0])

    def is_settled(self, messages: int) -> bool:
        return self.count("receipt") == messages and not self.count("delivery")


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Streaming]:
    with closing(Streaming(ready_database("postgresql"))) as service:
        yield service


@asynccontextmanager
async def running(service: Streaming, broker: Any, **settings: Any) -> AsyncIterator[Relay]:
    """A relay that reads the stream."""
    relay = Relay(service.url, broker, cdc=True, **{**QUICK, **settings})
    async with relay:
        await wait_for(lambda: service.mode() == "stream" and service.reader() == relay.worker)
        yield relay


def numbered(count: int, start: int = 0, keys: int = 7) -> list[Message]:
    return [Message.new("t", n, key=f"k{n % keys}" if n % 3 else None) for n in range(start, start + count)]


def by_key(messages: Sequence[Message]) -> dict[str, list[int]]:
    """The numbers of each key in the order in which they first came."""
    found: dict[str, dict[int, None]] = defaultdict(dict)
    for message in messages:
        if message.key is not None:
            found[message.key].setdefault(message.json())
    return {key: list(numbers) for key, numbers in found.items()}


class Moody:
    """A broker that refuses at random, has outages, and keeps no order itself."""

    name = "moody"

    def __init__(self, seed: int, *, ordered_prefix: bool = False) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.capabilities = Capabilities(ordered_prefix=ordered_prefix)
        self.messages: list[Message] = []
        self.down = False

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        await asyncio.sleep(0)
        outcomes: list[Outcome] = []
        failed: set[str | None] = set()
        for message in messages:
            if self.down:
                outcomes.append(Unreached("nobody is there"))
            elif self.capabilities.ordered_prefix and failed:
                outcomes.append(Refused("EARLIER", "one before it was refused"))
            elif message.key in failed or self._chance.random() < 0.1:
                failed.add(message.key)
                outcomes.append(Refused("NOPE", "not now"))
            else:
                self.messages.append(message)
                outcomes.append(ACCEPTED)
        return outcomes

    async def close(self) -> None:
        """Nothing to close."""


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


async def test_R_7_an_outbox_goes_into_the_stream_and_back_while_it_is_used(service: Streaming) -> None:
    """Keys that are in the table leave before those in the stream, and the other way round."""
    from postroom.store.connections.stores import Store
    from postroom.store.stream.switching import FINISHED, Switching

    sent: list[Message] = []
    changes: list[str] = []

    async def publish(message: Message) -> None:
        await asyncio.sleep(0.001)
        sent.append(message)

    def note(event: Event) -> None:
        if isinstance(event, StreamChanged):
            changes.append(event.what)

    stop = asyncio.Event()
    added = 0

    async def produce() -> None:
        nonlocal added
        while not stop.is_set():
            await asyncio.to_thread(service.add, *numbered(5, added))
            added += 5

    table_relay = Relay(service.url, publish, **QUICK)
    async with table_relay, asyncio.TaskGroup() as group:
        producing = group.create_task(produce())
        await wait_for(lambda: len(sent) > 50)
        async with running(service, publish, hook=note):
            so_far = len(sent)
            await wait_for(lambda: len(sent) > so_far + 100)
            assert service.count("outbox", "streamed") > 0
            with closing(Store(service.url)) as store:
                switching = Switching(store.names)
                assert await asyncio.to_thread(store.run, switching.begin())
                while await asyncio.to_thread(store.run, switching.advance()) != FINISHED:
                    pass
            await wait_for(lambda: service.mode() == "table")
            streamed, so_far = service.count("outbox", "streamed"), len(sent)
            await wait_for(lambda: len(sent) > so_far + 100)
            assert service.count("outbox", "streamed") == streamed
            stop.set()
            await producing
            await wait_for(lambda: service.is_settled(added))
    assert service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
    assert {one.json() for one in sent} == set(range(added))
    assert {key: numbers for key, numbers in by_key(sent).items() if numbers != sorted(numbers)} == {}


async def test_R_7_a_standby_takes_over_at_once_from_one_that_leaves(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker) as first, Relay(service.url, broker, cdc=True, **QUICK) as second:
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
        first.stop()
        await wait_for(lambda: service.reader() == second.worker)
        service.add(*numbered(10, 10))
        await wait_for(lambda: service.is_settled(20))
    assert len(broker.messages) == 20


async def test_R_7_a_run_that_ends_by_itself_reads_all_that_was_committed(service: Streaming) -> None:
    broker = MemoryBroker()
    relay = Relay(service.url, broker, cdc=True, **QUICK)
    assert (await relay.run_until_empty()).sent == 0
    service.add(*numbered(3000))
    assert (await Relay(service.url, broker, cdc=True, **QUICK).run_until_empty()).sent == 3000
    service.add(*numbered(20, 3000))
    assert (await Relay(service.url, broker, cdc=True, **QUICK).run_once()).sent == 20
    assert service.is_settled(3020)


async def test_R_7_a_slot_that_holds_too_much_is_given_up(service: Streaming) -> None:
    """An open transaction keeps the slot from moving on, whatever the relay does."""
    broker = MemoryBroker()
    changes: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, StreamChanged):
            changes.append(event.what)

    async with running(service, broker, cdc_max_wal_bytes=1024 * 1024, hook=note):
        with service.engine.connect() as holder:
            service.outbox.add(holder, "t", "held")
            while service.mode() == "stream":
                service.add(*(Message.new("t", "x" * 100_000) for _ in range(10)))
                await asyncio.sleep(0.05)
            holder.commit()
        await wait_for(lambda: service.mode() == "table")
        service.add(Message.new("t", "after"))
        await wait_for(lambda: not service.count("delivery") and service.count("receipt") == service.count("outbox"))
    assert "gave up" in changes
    assert {b"held", b"after"} <= {one.payload for one in broker.messages}
    assert service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


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


async def test_R_7_what_was_written_while_the_publication_was_missing_is_found_in_the_table(service: Streaming) -> None:
    broker = MemoryBroker()
    changes: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, StreamChanged):
            changes.append(event.what)

    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    service.execute("DROP PUBLICATION postroom_outbox")
    service.add(*numbered(10, 10))
    async with running(service, broker, hook=note):
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
        assert "created" in changes
        service.execute("DROP PUBLICATION postroom_outbox")
        service.add(*numbered(10, 30))
        service.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        await wait_for(lambda: service.is_settled(40))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
    assert {one.json() for one in broker.messages} == set(range(40))


async def test_R_7_a_slot_that_the_server_invalidated_is_made_anew(service: Streaming) -> None:
    """As with `max_slot_wal_keep_size`, when no relay ran for long."""
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    service.add(*numbered(10, 10))
    [[name]] = service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    with service.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        try:
            status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{name}'"
            while connection.exec_driver_sql(status).scalar() != "lost":
                for _ in range(3):
                    connection.exec_driver_sql("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
                    connection.exec_driver_sql("SELECT pg_switch_wal()")
                connection.exec_driver_sql("CHECKPOINT")
        finally:
            connection.exec_driver_sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
    async with running(service, broker):
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
    assert len(broker.messages) == 30


async def test_R_7_a_relay_that_stops_within_a_large_transaction_leaves_the_rest_to_the_next(
    service: Streaming,
) -> None:
    sent: list[Message] = []

    async def publish(messages: list[Message]) -> None:
        await asyncio.sleep(0.01)
        sent.extend(messages)

    relay = Relay(service.url, publish, cdc=True, **{**QUICK, "batch": 20})
    async with relay:
        await wait_for(lambda: service.reader() == relay.worker)
        service.add(*numbered(3000, keys=50))
        await wait_for(lambda: len(sent) > 200)
    first = len(sent)
    assert first < 3000
    async with running(service, publish):
        await wait_for(lambda: service.is_settled(3000))
    assert len(sent) == 3000  # none twice: it left in order
    assert all(numbers == sorted(numbers) for numbers in by_key(sent).values())


@pytest.mark.parametrize("who", ["somebody", "a relay that was killed"])
async def test_R_7_a_slot_that_was_made_anew_without_a_sweep_is_noticed(service: Streaming, who: str) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    [[name]] = service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    service.rows(f"SELECT pg_drop_replication_slot('{name}')")
    service.add(*numbered(10, 10))
    service.rows(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    if who != "somebody":
        service.execute(f"UPDATE {service.table('stream')} SET token = 1, owner = 'killed'")
    service.add(*numbered(10, 20))
    async with running(service, broker):
        service.add(*numbered(10, 30))
        await wait_for(lambda: service.is_settled(40))
    assert {one.json() for one in broker.messages} == set(range(40))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())


async def test_R_7_a_publication_that_was_missing_for_a_while_under_its_reader_is_noticed(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
        [[definition]] = service.rows(
            "SELECT string_agg(quote_ident(a), ', ') FROM unnest((SELECT attnames FROM pg_publication_tables "
            "WHERE pubname = 'postroom_outbox')::text[]) AS a"
        )
        service.execute("DROP PUBLICATION postroom_outbox")
        service.add(*numbered(10, 10))
        service.execute(
            f"CREATE PUBLICATION postroom_outbox FOR TABLE {service.table('outbox')} ({definition}) WHERE (streamed) "
            "WITH (publish = 'insert', publish_via_partition_root = true)"
        )
        await wait_for(lambda: service.is_settled(20))
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
    assert {one.json() for one in broker.messages} == set(range(30))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
