"""The consumer through its public surface, on every database, with messages from memory."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy import Connection, text

from postroom import Consumer, Inbox, Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.errors import BrokerUnavailable
from postroom.incoming import Incoming
from postroom.rules.failures import Classifier, Failure
from postroom.sources.memory import MemorySource
from postroom.telemetry.events import Event, Handled, Postponed, Reachability
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.ext.asyncio import AsyncConnection

    from postroom.sources.port import Received
    from tests.conftest import FreshDatabase

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])

QUICK: dict[str, Any] = {"poll_interval_sec": 0.02}
INSERT = text("INSERT INTO bill (number) VALUES (:number)")


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute(
            "CREATE TABLE bill (place INTEGER PRIMARY KEY, number INTEGER)" if kind == "sqlite" else PLACED[kind]
        )
        yield service


PLACED = {
    "postgresql": "CREATE TABLE bill (place INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY, number INTEGER)",
    "mariadb": "CREATE TABLE bill (place INTEGER PRIMARY KEY AUTO_INCREMENT, number INTEGER) ENGINE=InnoDB",
}


def bills(service: Service) -> list[int]:
    return [number for [number] in service.rows("SELECT number FROM bill ORDER BY place")]  # type: ignore[misc]  # numbers


def orders(count: int, keys: int = 5) -> list[Message]:
    return [Message.new("orders.created", {"n": n}, key=f"k{n % keys}" if keys else None) for n in range(count)]


async def published(*messages: Message) -> MemoryBroker:
    broker = MemoryBroker()
    await broker.publish(messages, 1)
    return broker


async def test_I_2_each_message_is_handled_once_and_in_the_order_of_its_key(service: Service) -> None:
    messages = orders(200)
    broker = await published(*messages, *messages[50:100])
    consumer = Consumer("billing", broker, database=service.url, **QUICK)

    @consumer.handler("orders.created")
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(INSERT, {"number": message.json()["n"]})

    report = await consumer.run_once()
    assert (report.handled, report.duplicates) == (200, 50)
    found = bills(service)
    assert sorted(found) == list(range(200))
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in found:
        by_key[number % 5].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_async_handlers_get_an_async_connection(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(20)), database=service.url, **QUICK)

    @consumer.handler("orders.*")
    async def bill(connection: AsyncConnection, message: Incoming) -> None:
        await connection.execute(INSERT, {"number": message.json()["n"]})

    assert (await consumer.run_once()).handled == 20
    assert sorted(bills(service)) == list(range(20))


async def test_a_handler_that_takes_messages_gets_several_in_one_transaction(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(90, keys=0)), database=service.url, concurrency=1, **QUICK)
    sizes: list[int] = []

    @consumer.handler("orders.created", delays=[0])
    def bill(connection: Connection, messages: Sequence[Incoming]) -> None:
        sizes.append(len(messages))
        connection.execute(INSERT, [{"number": one.json()["n"]} for one in messages])

    assert (await consumer.run_once()).handled == 90
    assert sorted(bills(service)) == list(range(90))
    assert max(sizes) > 10


async def test_one_poison_message_of_a_batch_does_not_spoil_the_others(service: Service) -> None:
    messages = orders(40, keys=4)
    consumer = Consumer("billing", await published(*messages), database=service.url, **QUICK)

    @consumer.handler("orders.created", attempts=1)
    def bill(connection: Connection, messages: Sequence[Incoming]) -> None:
        connection.execute(INSERT, [{"number": one.json()["n"]} for one in messages])
        if any(one.json()["n"] == 13 for one in messages):
            raise ValueError("thirteen")

    report = await consumer.run_once()
    behind = [n for n in range(14, 40) if n % 4 == 1]
    assert (report.dead, report.parked) == (1, len(behind))
    assert sorted(bills(service)) == [n for n in range(40) if n != 13 and n not in behind]


async def test_I_1_a_handler_that_fails_leaves_no_mark_and_is_tried_again(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(3)), database=service.url, **QUICK)
    failures = iter([True])

    @consumer.handler("orders.created", delays=[0.05])
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(INSERT, {"number": message.json()["n"]})
        if message.json()["n"] == 1 and next(failures, False):
            raise RuntimeError("not now")

    async with consumer:
        await wait_for(lambda: len(bills(service)) == 3)
    assert (consumer.report.handled, consumer.report.parked) == (3, 1)
    assert sorted(bills(service)) == [0, 1, 2]
    marks = service.rows(f"SELECT count(*) FROM {service.table('inbox')}")
    assert marks == [(3,)]


def received(id: str, source: str | None = None, topic: str = "orders.created") -> Incoming:
    return Incoming(id=id, source=source, topic=topic, payload=b'{"n": 1}', content_type="application/json")


async def test_I_5_two_sources_with_the_same_id_are_two_messages(service: Service) -> None:
    consumer = Consumer("billing", "http:", database=service.url, **QUICK)
    failing = {"c"}

    @consumer.handler("orders.*", delays=[0.01])
    def bill(connection: Connection, message: Incoming) -> None:
        if message.source in failing:
            raise RuntimeError("not now")
        connection.execute(INSERT, {"number": message.json()["n"]})

    given = [received("7", "a"), received("7", "b"), received("7"), received("7", topic="orders.paid")]
    async with consumer:
        assert [await consumer.handle(one) for one in given] == ["handled"] * 4
        assert [await consumer.handle(one) for one in given] == ["duplicate"] * 4
        parked = received("7", "c")
        assert [await consumer.handle(parked), await consumer.handle(parked)] == ["parked", "parked"]
        failing.clear()
        await wait_for(lambda: len(bills(service)) == 5)
        assert await consumer.handle(parked) == "duplicate"


async def test_I_5_marks_of_relays_without_a_source_of_their_own_are_the_bare_id(service: Service) -> None:
    [message] = orders(1)
    with service.engine.begin() as connection:
        assert Inbox("billing").first_time(connection, message.id)
    consumer = Consumer("billing", await published(message), database=service.url, **QUICK)

    @consumer.handler("orders.created")
    def bill(message: Incoming) -> None:
        raise AssertionError(message.id)

    assert (await consumer.run_once()).duplicates == 1


async def test_I_4_a_key_that_an_application_has_used_keeps_no_message_from_being_parked(service: Service) -> None:
    """As applications could before such keys were refused, and as plain SQL still can."""
    message = received("7", "shop")
    theirs = Message.new("other", {"n": 2})
    service.commit(replace(theirs, idempotency_key="postroom:parked:7:billing:shop 7"))
    consumer = Consumer("billing", "http:", database=service.url, **QUICK)
    calls: list[str] = []

    @consumer.handler("orders.created", delays=[0.01], attempts=2)
    def bill(message: Incoming) -> None:
        calls.append(message.id)
        raise RuntimeError("no")

    async with consumer:
        assert await consumer.handle(message) == "parked"
        await wait_for(lambda: len(service.dead()) == 1)
    assert calls == ["7", "7"]


async def test_I_4_what_keeps_failing_is_a_dead_letter_and_holds_only_its_key(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(20)), database=service.url, **QUICK)
    tries: list[int] = []

    @consumer.handler("orders.created", delays=[0])
    def bill(connection: Connection, message: Incoming) -> None:
        if message.json()["n"] == 2:
            tries.append(2)
            raise KeyError("poison")
        connection.execute(INSERT, {"number": message.json()["n"]})

    async with consumer:
        await wait_for(lambda: consumer.report.dead == 1 and len(bills(service)) == 16)
    assert len(tries) == 3
    assert sorted(bills(service)) == [n for n in range(20) if n % 5 != 2]
    [letter] = service.dead()
    assert (letter.topic, letter.key, letter.attempts) == ("orders.created", "k2", 3)
    assert letter.error_code == "INTERNAL_ERROR"
    assert re.fullmatch(r"KeyError: 'poison' \(\S*test_consumer\.py:\d+, in bill\)", str(letter.error_message))
    assert service.status().held == 3


async def test_L_10_a_dead_letter_that_is_requeued_is_handled_and_frees_its_key_in_order(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(20)), database=service.url, **QUICK)
    is_broken = True

    @consumer.handler("orders.created", attempts=1)
    def bill(connection: Connection, message: Incoming) -> None:
        if is_broken and message.json()["n"] == 2:
            raise KeyError("poison")
        connection.execute(INSERT, {"number": message.json()["n"]})

    async with consumer:
        await wait_for(lambda: len(bills(service)) == 16)
        is_broken = False
        [letter] = service.dead()
        await asyncio.to_thread(service.requeue, letter)  # it may wait for a lock that the consumer holds
        await wait_for(lambda: len(bills(service)) == 20)
    assert [n for n in bills(service) if n % 5 == 2] == [2, 7, 12, 17]


async def test_what_comes_behind_a_parked_message_of_its_key_waits_for_it(service: Service) -> None:
    first, *others = orders(8, keys=1)
    broker = await published(first)
    may_work = False

    def consumer_of(broker: MemoryBroker) -> Consumer:
        consumer = Consumer("billing", broker, database=service.url, **QUICK)

        @consumer.handler("orders.created", attempts=1000, delays=[0.02])
        def bill(connection: Connection, message: Incoming) -> None:
            if not may_work:
                raise RuntimeError("not now")
            connection.execute(INSERT, {"number": message.json()["n"]})

        return consumer

    assert (await consumer_of(broker).run_once()).parked >= 1
    await broker.publish(others, 1)
    async with consumer_of(broker) as consumer:  # another process, which learns of it from the database
        await wait_for(lambda: consumer.report.parked > 7)
        may_work = True
        await wait_for(lambda: len(bills(service)) == 8)
    assert bills(service) == list(range(8))


async def test_S_3_what_a_handler_adds_to_the_outbox_commits_with_its_effect(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(10)), database=service.url, **QUICK)
    outbox = Outbox()

    @consumer.handler("orders.created", attempts=1)
    def bill(connection: Connection, message: Incoming) -> None:
        outbox.add(connection, "bills.written", message.json(), key=message.key)
        if message.json()["n"] == 9:
            raise ValueError("it was written too soon")

    await consumer.run_once()
    sent = MemoryBroker()
    await Relay(service.url, sent).run_until_empty()
    assert sorted(message.json()["n"] for message in sent.messages) == list(range(9))


async def test_a_relay_of_the_service_does_not_touch_what_is_parked(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(3)), database=service.url, **QUICK)

    @consumer.handler("orders.created", delays=[3600])
    def bill(message: Incoming) -> None:
        raise RuntimeError(message.id)

    assert (await consumer.run_once()).parked == 3
    sent = MemoryBroker()
    await Relay(service.url, sent).run_until_empty()
    assert sent.messages == []
    assert service.status().waiting == 3


async def test_a_message_that_is_parked_and_comes_again_is_parked_once(service: Service) -> None:
    messages = orders(3)
    broker = await published(*messages, *messages)
    consumer = Consumer("billing", broker, database=service.url, **QUICK)

    @consumer.handler("orders.created", delays=[3600])
    def bill(message: Incoming) -> None:
        raise RuntimeError(message.id)

    await consumer.run_once()
    assert service.status().waiting == 3
    assert service.rows(f"SELECT count(*) FROM {service.table('inbox')}") == [(0,)]


async def test_a_permanent_failure_is_dead_at_once(service: Service) -> None:
    classifier = Classifier().with_exception(ValueError, "BAD_ORDER").with_code("BAD_ORDER", Failure.PERMANENT)
    consumer = Consumer("billing", await published(*orders(2)), database=service.url, classifier=classifier, **QUICK)

    @consumer.handler("orders.created")
    def bill(message: Incoming) -> None:
        if message.json()["n"] == 1:
            raise ValueError("no such article")

    report = await consumer.run_once()
    assert (report.handled, report.dead) == (1, 1)
    [letter] = service.dead()
    assert (letter.error_code, letter.attempts) == ("BAD_ORDER", 1)


async def test_a_handler_that_takes_too_long_has_failed_and_writes_nothing(service: Service) -> None:
    consumer = Consumer("billing", await published(*orders(1)), database=service.url, **QUICK)
    goes_on = asyncio.Event()

    @consumer.handler("orders.created", timeout=0.1, attempts=1)
    async def bill(connection: AsyncConnection, message: Incoming) -> None:
        await connection.execute(INSERT, {"number": message.json()["n"]})
        await goes_on.wait()

    assert (await consumer.run_once()).dead == 1
    [letter] = service.dead()
    said, _, place = str(letter.error_message).partition(" (")
    assert (letter.error_code, said) == ("TIMEOUT", "the handler did not end within 0.1 s")
    assert re.fullmatch(r"\S*test_consumer\.py:\d+, in bill\)", place), "the line that it waited at"
    assert bills(service) == []


async def test_the_same_message_counts_once_for_each_consumer(service: Service) -> None:
    broker = await published(*orders(5))
    for name in ("billing", "shipping"):
        consumer = Consumer(name, broker, database=service.url, **QUICK)

        @consumer.handler("*")
        def bill(connection: Connection, message: Incoming) -> None:
            connection.execute(INSERT, {"number": message.json()["n"]})

        assert (await consumer.run_once()).handled == 5
    assert len(bills(service)) == 10


async def test_a_message_that_is_in_the_services_own_outbox_can_be_parked_too(service: Service) -> None:
    broker = MemoryBroker()
    service.commit(*orders(4))
    await Relay(service.url, broker).run_until_empty()
    consumer = Consumer("billing", broker, database=service.url, **QUICK)
    failed: set[str] = set()

    @consumer.handler("orders.created", delays=[0.02])
    def bill(connection: Connection, message: Incoming) -> None:
        assert message.position is not None
        assert message.created_at is not None
        if message.id not in failed:
            failed.add(message.id)
            raise RuntimeError("not now")
        connection.execute(INSERT, {"number": message.json()["n"]})

    async with consumer:
        await wait_for(lambda: len(bills(service)) == 4)
    assert sorted(bills(service)) == list(range(4))


async def test_I_1_an_inbox_in_a_users_own_handler_and_a_consumer_are_of_one_kind(service: Service) -> None:
    [message] = orders(1)
    with service.engine.begin() as connection:
        assert Inbox("billing").first_time(connection, message.id)
    consumer = Consumer("billing", await published(message), database=service.url, **QUICK)

    @consumer.handler("orders.created")
    def bill(message: Incoming) -> None:
        raise AssertionError(message)

    assert (await consumer.run_once()).duplicates == 1


async def test_stopping_finishes_what_is_begun_and_gives_back_the_rest(service: Service) -> None:
    broker = await published(*orders(50, keys=1))
    began, may_end = asyncio.Event(), asyncio.Event()

    def consumer_of() -> Consumer:
        consumer = Consumer("billing", broker, database=service.url, **QUICK)

        @consumer.handler("orders.created")
        async def bill(connection: AsyncConnection, message: Incoming) -> None:
            began.set()
            await may_end.wait()
            await connection.execute(INSERT, {"number": message.json()["n"]})

        return consumer

    consumer = consumer_of()
    running = asyncio.create_task(consumer.run())
    await began.wait()
    consumer.stop()
    may_end.set()
    await running
    assert bills(service) == [0]
    report = await consumer_of().run_once()
    assert (report.handled, report.duplicates) == (49, 0)
    assert bills(service) == list(range(50))


async def test_what_no_handler_is_for_is_acknowledged_and_told(service: Service) -> None:
    events: list[Event] = []
    broker = await published(Message.new("orders.cancelled", {}), Message.new("orders.created", {}, type="Other"))
    consumer = Consumer("billing", broker, database=service.url, hook=events.append, **QUICK)

    @consumer.handler("orders.*", type="OrderCreated")
    def bill(message: Incoming) -> None:
        raise AssertionError(message)

    assert (await consumer.run_once()).skipped == 2
    assert [event.fate for event in events if isinstance(event, Handled)] == ["skipped", "skipped"]
    assert (await consumer.run_once()).skipped == 0


@pytest.mark.parametrize("waits", [False, True], ids=["sync", "async"])
async def test_V_3_a_handler_goes_on_in_the_trace_of_the_sender(service: Service, *, waits: bool) -> None:
    sender = TracerProvider().get_tracer("shop")
    with sender.start_as_current_span("order") as span:
        broker = await published(*orders(2))
    consumer = Consumer("billing", broker, database=service.url, **QUICK)
    outbox = Outbox()

    if waits:

        @consumer.handler("orders.created")
        async def bill_later(connection: AsyncConnection, message: Incoming) -> None:
            await outbox.aadd(connection, "bills.written", message.json())

    else:

        @consumer.handler("orders.created")
        def bill(connection: Connection, message: Incoming) -> None:
            outbox.add(connection, "bills.written", message.json())

    assert (await consumer.run_once()).handled == 2
    sent = MemoryBroker()
    await Relay(service.url, sent).run_until_empty()
    trace = f"{span.get_span_context().trace_id:032x}"
    assert [message.headers["traceparent"].split("-")[1] for message in sent.messages] == [trace] * 2


async def test_R_8_once_says_that_the_broker_is_away_and_run_waits_for_it(service: Service) -> None:
    events: list[Event] = []
    url = f"nats://127.0.0.1:{free_port()}"
    consumer = Consumer("billing", url, database=service.url, hook=events.append, **QUICK)

    @consumer.handler("orders.created")
    def bill(message: Incoming) -> None: ...

    with pytest.raises(BrokerUnavailable):
        await consumer.run_once()
    running = asyncio.create_task(consumer.run())
    await wait_for(lambda: sum(isinstance(event, Reachability) for event in events) == 2)
    assert not running.done()
    consumer.stop()
    await running


async def test_V_4_status_says_why_a_consumer_receives_nothing(service: Service) -> None:
    port = free_port()
    consumer = Consumer("billing", f"nats://127.0.0.1:{port}", database=service.url, worker="pod-1", **QUICK)

    @consumer.handler("orders.created")
    def bill(message: Incoming) -> None: ...

    def reasons() -> list[str | None]:
        workers = service.status().workers
        return [one.broker_down for one in workers if (one.name, one.queue) == ("pod-1", "source:billing")]

    async with consumer:
        await wait_for(lambda: any(f"127.0.0.1:{port}" in (reason or "") for reason in reasons()))
    assert service.status().workers == ()


async def test_a_slow_message_does_not_hold_up_the_answers_to_those_before_it(service: Service) -> None:
    """Also if they are handled in one go: one worker, which finds both."""
    consumer = Consumer("billing", database=service.url, concurrency=1, **QUICK)
    may_end = threading.Event()

    @consumer.handler("orders.created")
    def bill(connection: Connection, message: Incoming) -> None:
        if message.json()["n"] and not may_end.wait(20):
            raise TimeoutError
        connection.execute(INSERT, {"number": message.json()["n"]})

    first, second = (
        Incoming(id=str(n), topic="orders.created", payload=b'{"n": %d}' % n, content_type="") for n in (0, 1)
    )
    async with consumer, asyncio.TaskGroup() as group:
        answers = [group.create_task(consumer.handle(one)) for one in (first, second)]
        assert await asyncio.wait_for(answers[0], 10) == "handled"
        assert not answers[1].done()
        may_end.set()
    assert bills(service) == [0, 1]


async def test_I_2_who_no_longer_waits_for_a_message_that_it_gave_does_not_end_the_consumer(service: Service) -> None:
    """The source would be told to acknowledge what it never gave."""

    class Strict(MemorySource):
        async def acknowledge(self, received: Sequence[Received]) -> None:
            assert all(one.receipt is not None for one in received)
            await super().acknowledge(received)

    consumer = Consumer("billing", Strict(MemoryBroker(), "billing", ["orders.created"]), database=service.url, **QUICK)
    may_go_on = asyncio.Event()

    @consumer.handler("orders.created")
    async def bill(connection: AsyncConnection, message: Incoming) -> None:
        await may_go_on.wait()
        await connection.execute(INSERT, {"number": int(message.id)})

    def order(number: int) -> Incoming:
        return Incoming(id=str(number), topic="orders.created", payload=b"{}", content_type="application/json")

    async with consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.handle(order(1)), 0.1)
        may_go_on.set()
        assert await consumer.handle(order(2)) == "handled"
    assert sorted(bills(service)) == [1, 2]


async def test_hung_handlers_cost_the_others_no_attempt_and_are_said(service: Service, kind: str) -> None:
    if kind == "sqlite":
        pytest.skip("one that hangs is the only writer there")
    told: list[Reachability] = []
    release = threading.Event()
    called: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Reachability) and event.what == "handlers":
            told.append(event)

    consumer = Consumer("billing", "http:", database=service.url, concurrency=1, hook=listen, **QUICK)

    @consumer.handler("orders.created", attempts=1, timeout=0.5)
    def bill(message: Incoming) -> None:
        called.append(message.id)
        if message.id.startswith("hangs"):
            release.wait(60)

    async with consumer:
        assert [await consumer.handle(received(f"hangs {n}")) for n in range(2)] == ["dead", "dead"]
        good = asyncio.create_task(consumer.handle(received("good")))
        await wait_for(lambda: told)
        assert (told[0].reachable, "2 calls of sync handlers" in told[0].reason) == (False, True)
        assert called == ["hangs 0", "hangs 1"]
        release.set()
        assert await good == "handled"
    assert [one.reachable for one in told] == [False, True]
    assert [one.error_message for one in service.dead()] == ["the handler did not end within 0.5 s"] * 2


def hanging(called: list[str], release: threading.Event, *, asynchronous: bool) -> Any:
    """A handler that does not end before it is released: a sync one, or one that does not heed being cancelled."""

    def hang(message: Incoming) -> None:
        called.append(message.id)
        release.wait(60)

    async def ahang(message: Incoming) -> None:
        called.append(message.id)
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    return ahang if asynchronous else hang


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_call_that_hangs_is_not_made_again_before_it_has_ended(
    service: Service, kind: str, *, asynchronous: bool
) -> None:
    """Another one would wait for the first one's mark until its own time is up, and burn an attempt and a thread."""
    if kind == "sqlite":
        pytest.skip("one that hangs is the only writer there")
    events: list[Event] = []
    called: list[str] = []
    release = threading.Event()
    consumer = Consumer("billing", "http:", database=service.url, concurrency=1, hook=events.append, **QUICK)
    options: dict[str, Any] = {"attempts": 2, "delays": [0.01], "timeout": 0.5}
    consumer.handler("orders.created", **options)(hanging(called, release, asynchronous=asynchronous))
    async with consumer:
        assert await consumer.handle(received("7")) == "parked"
        await wait_for(lambda: any(isinstance(event, Postponed) for event in events))
        assert await consumer.handle(received("7")) == "parked", "as when its sender repeats it"
        assert called == ["7"]
        release.set()
        await wait_for(lambda: consumer.report.handled)
    assert (called, service.dead()) == (["7", "7"], [])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_single_run_ends_where_calls_hang(service: Service, kind: str, *, asynchronous: bool) -> None:
    if kind == "sqlite":
        pytest.skip("one that hangs is the only writer there")
    called: list[str] = []
    release = threading.Event()
    broker = await published(*orders(4))
    consumer = Consumer("billing", broker, database=service.url, concurrency=1, **QUICK)
    consumer.handler("orders.created", timeout=0.5)(hanging(called, release, asynchronous=asynchronous))
    with pytest.raises(BrokerUnavailable, match=r"2 calls of a?sync handlers have not ended in time"):
        await consumer.run_once()
    assert len(called) == 2
    release.set()
    report = await consumer.run_once()
    assert report.handled >= 2, "what was not tried was given back"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_handler_whose_other_database_is_down_is_called_once_an_attempt(
    service: Service, *, asynchronous: bool
) -> None:
    consumer = Consumer("billing", "http:", database=service.url, **QUICK)
    place, called = f"host=127.0.0.1 port={free_port()} connect_timeout=2", []

    def bill(message: Incoming) -> None:
        called.append(message.id)
        psycopg.connect(place)

    async def abill(message: Incoming) -> None:
        called.append(message.id)
        await psycopg.AsyncConnection.connect(place)

    consumer.handler("orders.created", attempts=2, delays=[0.01])(abill if asynchronous else bill)
    async with consumer:
        assert await consumer.handle(received("7")) == "parked"
        await wait_for(service.dead)
    assert called == ["7", "7"]


async def test_L_10_what_the_database_does_not_take_is_a_dead_letter_without_its_payload(service: Service) -> None:
    """Too large for MariaDB's packets; the others' own limits are at a gigabyte, so they get lower ones here."""
    consumer = Consumer("billing", "http:", database=service.url, concurrency=1, **QUICK)
    handled: list[str] = []

    @consumer.handler("orders.created", delays=[60])
    def bill(message: Incoming) -> None:
        if message.id == "large":
            raise RuntimeError("not now")
        handled.append(message.id)

    large = replace(received("large"), payload=b"x" * (9 * 1024 * 1024), key="k", headers={"colour": "red"})
    service.limit_payloads(8 * 1024 * 1024)
    async with consumer:
        assert await consumer.handle(large) == "dead"
        assert await consumer.handle(received("good")) == "handled"
        [letter] = service.dead()
        assert letter.error_code == "MESSAGE_TOO_LARGE"
        assert "bytes are not kept: the database does not take them; before that: RuntimeError: not now" in str(
            letter.error_message
        )
        await asyncio.to_thread(service.requeue, letter)  # it may wait for a lock that the consumer holds
        await wait_for(lambda: [one.error_code for one in service.dead()] == ["UNDECODABLE"])
    assert handled == ["good"]


async def test_I_4_what_cannot_be_read_does_not_reach_the_handler_when_it_is_requeued(service: Service) -> None:
    consumer = Consumer("billing", "http:", database=service.url, **QUICK)
    handled: list[Incoming] = []

    @consumer.handler("orders.created", type="OrderCreated")  # which it has not, and is a dead letter all the same
    def bill(connection: Connection, message: Incoming) -> None:
        del connection
        handled.append(message)

    message = Incoming(id="1", topic="orders.created", payload=b"{", content_type="text/x", problem="it has no type")
    async with consumer:
        assert await consumer.handle(message) == "dead"
    service.requeue(*service.dead())
    await consumer.run_once()
    assert handled == []
    assert [(one.error_code, one.error_message) for one in service.dead()] == [("UNDECODABLE", "it has no type")]
