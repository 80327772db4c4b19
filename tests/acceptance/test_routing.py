"""Several brokers in one relay, through the public surface: one that is down holds back only its own topics."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from postroom import Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import Outcome, Unreached
from postroom.cli.running import run
from postroom.errors import InvalidSetting
from postroom.telemetry.events import Event, Reachability
from postroom.testing import InMemoryRelay
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import FreshDatabase

on_databases = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
PAYMENTS = "topic:payments.*"
TOPICS = ("orders.created", "payments.made")


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


class Broker(MemoryBroker):
    """Takes messages while it is up."""

    def __init__(self, *, up: bool = True) -> None:
        super().__init__()
        self.up = up

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        if not self.up:
            return [Unreached("connection refused")] * len(messages)
        return await super().publish(messages, timeout)

    def topics(self) -> set[str]:
        return {message.topic for message in self.messages}

    def is_in_order(self) -> bool:
        by_key: dict[str | None, list[int]] = defaultdict(list)
        for message in self.messages:
            by_key[message.key].append(message.json()["n"])
        return all(numbers == sorted(numbers) for key, numbers in by_key.items() if key is not None)


def mixed(count: int, *topics: str, first: int = 0) -> list[Message]:
    """So many messages to each topic, a third of them without a key."""
    return [
        Message.new(topic, {"n": n}, key=f"k{n % 5}" if n % 3 else None)
        for n in range(first, first + count)
        for topic in topics or TOPICS
    ]


async def holds(condition: Callable[[], object]) -> None:
    """Return when it does."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - of what a database says, too, which calls nobody
            await asyncio.sleep(0.01)


def queues(service: Service) -> dict[object, object]:
    found = service.rows(f"SELECT queue, count(*) FROM {service.table('delivery')} GROUP BY queue")
    return {queue: count for queue, count in found}  # noqa: C416 - mypy knows no rows of two


@on_databases
async def test_each_topic_goes_to_its_broker_and_keeps_the_order_of_its_keys(service: Service) -> None:
    service.commit(*mixed(200))
    orders, payments = Broker(), Broker()
    report = await Relay(service.url, orders, brokers={"payments.*": payments}).run_once()
    assert (report.sent, report.broker_down) == (400, False)
    assert (orders.topics(), payments.topics()) == ({"orders.created"}, {"payments.made"})
    assert orders.is_in_order()
    assert payments.is_in_order()


@on_databases
@pytest.mark.parametrize("down", ["default", "pattern"])
async def test_R_5_a_broker_that_is_down_holds_back_only_its_own_topics(service: Service, down: str) -> None:
    service.commit(*mixed(50))
    orders, payments = Broker(up=down != "default"), Broker(up=down != "pattern")
    away, there = (orders, payments) if down == "default" else (payments, orders)
    relay = Relay(service.url, orders, brokers={"payments.*": payments}, lane_lease_sec=1, poll_interval_sec=0.05)
    async with relay:
        await holds(lambda: len(there.messages) == 50)
        service.commit(*mixed(50, first=50))
        await holds(lambda: len(there.messages) == 100)
        await holds(lambda: service.status().sent == 100)
        await holds(lambda: any(one.broker_down for one in service.status().workers))
        status = service.status()
        queue = "topic:*" if down == "default" else PAYMENTS
        reasons = {one.queue: one.broker_down for one in status.workers}
        assert reasons == {**dict.fromkeys(["default", PAYMENTS, "topic:*"]), queue: "connection refused"}
        assert (status.sent, status.pending + status.sending) == (100, 100)
        assert relay.report.queues_down == [queue]
        away.up = True
        await holds(lambda: len(away.messages) == 100)
    assert (relay.report.sent, relay.report.retried, relay.report.broker_down) == (200, 0, False)
    assert there.is_in_order()
    assert away.is_in_order()
    assert service.rows(f"SELECT DISTINCT attempts FROM {service.table('receipt')}") == [(0,)]
    assert service.status().workers == ()


@on_databases
async def test_a_slow_broker_does_not_keep_another_waiting(service: Service) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(messages: list[Message]) -> None:
        del messages
        begun.set()
        await go_on.wait()

    quick = Broker()
    relay = Relay(service.url, slow, brokers={"payments.*": quick}, batch=2, concurrency=1)
    async with relay:
        service.commit(*mixed(100, "orders.created"))
        await begun.wait()
        service.commit(*mixed(100, "payments.made"))
        await holds(lambda: len(quick.messages) == 100)
        go_on.set()


@on_databases
async def test_producers_may_know_the_patterns_or_not(service: Service) -> None:
    knowing = Outbox(brokers=["payments.*"])
    for n in range(60):
        with service.engine.begin() as connection:
            messages = [Message.new(topic, {"n": n}, key=f"k{n % 3}" if n % 4 else None) for topic in TOPICS]
            (knowing if n % 2 else Outbox()).add_many(connection, messages)
    assert queues(service) == {"default": 60, PAYMENTS: 30, "topic:*": 30}
    orders, payments = Broker(), Broker()
    report = await Relay(service.url, orders, brokers={"payments.*": payments}, batch=7).run_until_empty()
    assert report.sent == 120
    assert len(orders.messages) == len(payments.messages) == 60
    assert orders.is_in_order()
    assert payments.is_in_order()


@on_databases
async def test_order_by_key_holds_while_producers_of_both_kinds_add(service: Service) -> None:
    outboxes = [Outbox(), Outbox(brokers=["payments.*"])]

    def produce() -> None:
        for n in range(200):
            with service.engine.begin() as connection:
                message = Message.new("payments.made", {"n": n}, key=f"k{n % 3}")
                outboxes[n // 3 % 2].add_many(connection, [message])

    payments = Broker()
    relays = [Relay(service.url, Broker(), brokers={"payments.*": payments}, poll_interval_sec=0.02) for _ in range(2)]
    async with relays[0], relays[1]:
        await asyncio.to_thread(produce)
        await holds(lambda: len(payments.messages) >= 200)
    assert payments.is_in_order()
    assert len(payments.messages) == 200


@on_databases
async def test_when_the_patterns_are_gone_their_messages_come_back(service: Service) -> None:
    service.commit(*mixed(30))
    await Relay(service.url, Broker(), brokers={"payments.*": Broker(up=False)}).run_once()
    assert queues(service) == {PAYMENTS: 30}
    only = Broker()
    report = await Relay(service.url, only).run_once()
    assert (report.sent, len(only.messages)) == (30, 30)
    assert only.is_in_order()


@on_databases
async def test_when_the_patterns_change_what_was_sorted_is_sorted_anew(service: Service) -> None:
    service.commit(*mixed(30, *TOPICS, "payments.eu.made"))
    away = Broker(up=False)
    await Relay(service.url, away, brokers={"payments.*": away}).run_once()
    assert queues(service) == {PAYMENTS: 60, "topic:*": 30}
    orders, europe = Broker(), Broker()
    relay = Relay(service.url, away, brokers={"orders.*": orders, "payments.eu.*": europe})
    report = await relay.run_once()
    assert (report.sent, len(orders.messages), len(europe.messages)) == (60, 30, 30)
    assert orders.is_in_order()
    assert europe.is_in_order()
    assert queues(service) == {"topic:*": 30}


@on_databases
async def test_what_a_producer_with_old_patterns_adds_finds_its_broker(service: Service) -> None:
    old = Outbox(brokers=["payments.*"])
    orders, others = Broker(), Broker()
    relay = Relay(service.url, others, brokers={"payments.*": Broker(), "orders.*": orders})
    async with relay:
        await holds(lambda: {one.queue for one in service.status().workers} >= {"topic:*", "topic:orders.*"})
        with service.engine.begin() as connection:
            old.add_many(connection, mixed(100, "orders.created", "events"))
        await holds(lambda: len(orders.messages) == len(others.messages) == 100)
    assert (orders.topics(), others.topics()) == ({"orders.created"}, {"events"})
    assert orders.is_in_order()
    assert (relay.report.sent, relay.report.conflicts) == (200, 0)
    assert service.rows(f"SELECT DISTINCT attempts FROM {service.table('receipt')}") == [(0,)]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_relay_for_tests_sends_nothing_to_the_brokers_of_the_settings(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_BROKERS", "payments.*=python:no.such.module:function")
    service.commit(*mixed(3))
    assert queues(service) == {PAYMENTS: 3, "topic:*": 3}
    assert len(InMemoryRelay(service.url).deliver(lambda _: None)) == 6


@on_databases
async def test_what_is_sorted_by_a_living_relay_stays_there(service: Service) -> None:
    payments = Broker(up=False)
    service.commit(*mixed(10, "payments.made"))
    async with Relay(service.url, Broker(), brokers={"payments.*": payments}):
        await holds(lambda: queues(service) == {PAYMENTS: 10})
        report = await Relay(service.url, Broker()).run_once()
        assert report.sent == 0
        assert queues(service) == {PAYMENTS: 10}


@on_databases
async def test_a_topic_without_a_broker_waits_and_the_relay_says_so(service: Service) -> None:
    service.commit(*mixed(10))
    payments = Broker()
    said: list[Reachability] = []

    def listen(event: Event) -> None:
        if isinstance(event, Reachability):
            said.append(event)

    report = await Relay(service.url, brokers={"payments.*": payments}, hook=listen).run_once()
    assert (report.sent, report.queues_down) == (10, ["topic:*"])
    [down] = said
    assert "no broker is given for the topic 'orders.created'" in down.reason
    assert service.rows(f"SELECT DISTINCT attempts, claims FROM {service.table('delivery')}") == [(0, 0)]
    assert (await Relay(service.url, brokers={"payments.*": payments}).run_until_empty()).sent == 0
    orders = Broker()
    assert (await Relay(service.url, orders, brokers={"payments.*": payments}).run_once()).sent == 10


@on_databases
async def test_queues_of_others_are_left_alone(service: Service) -> None:
    service.commit(*mixed(5, "orders.created"))
    service.execute(f"UPDATE {service.table('delivery')} SET queue = 'handlers'")
    for brokers in ({}, {"payments.*": Broker()}):
        report = await Relay(service.url, Broker(), brokers=brokers).run_once()
        assert report.sent == 0
    assert queues(service) == {"handlers": 5}


@on_databases
async def test_a_relay_of_another_queue_does_not_sort(service: Service) -> None:
    service.commit(*mixed(5, "payments.made"))
    report = await Relay(service.url, Broker(), queue="handlers", brokers={"payments.*": Broker()}).run_once()
    assert report.sent == 0
    assert queues(service) == {"default": 5}


class TestLocks:
    """All queues share connections: one whose statements wait for locks steps aside after a few seconds."""

    @pytest.mark.parametrize("kind", ["postgresql"])
    async def test_a_lock_on_lanes_of_one_queue_does_not_stop_reads_of_the_others(self, service: Service) -> None:
        others, lock = Broker(), f"SELECT 1 FROM {service.table('lane')} WHERE queue = '{PAYMENTS}' FOR UPDATE"
        async with Relay(service.url, others, brokers={"payments.*": Broker()}, lane_lease_sec=120):
            service.commit(Message.new("orders.created", {}, key="k"))
            await holds(lambda: others.messages)
            with service.engine.begin() as connection:
                connection.execute(text(lock))
                await holds(lambda: waits_for_a_lock(service))
                service.commit(*(Message.new("orders.created", {}, key=str(n)) for n in range(50)))
                async with asyncio.timeout(20):
                    await holds(lambda: len(others.messages) == 51)

    @pytest.mark.parametrize("kind", ["postgresql"])
    async def test_a_lock_on_deliveries_of_one_queue_delays_settlements_of_the_others_once(
        self, service: Service
    ) -> None:
        """Before, each settlement of the others waited for 30 s."""
        go_on, begun = asyncio.Event(), list[Message]()

        async def payments(messages: list[Message]) -> None:
            begun.extend(messages)
            await go_on.wait()

        lock = f"SELECT 1 FROM {service.table('delivery')} WHERE queue = '{PAYMENTS}' FOR UPDATE"
        relay = Relay(
            service.url, Broker(), brokers={"payments.*": payments}, broker_timeout_ms=20_000, poll_interval_sec=0.05
        )
        async with relay:
            service.commit(*(Message.new("payments.made", {}, key=str(n) if n % 2 else None) for n in range(10)))
            await holds(lambda: len(begun) == 10)
            with service.engine.begin() as connection:
                connection.execute(text(lock))
                go_on.set()
                await holds(lambda: waits_for_a_lock(service))
                service.commit(*mixed(10, "orders.created"))
                async with asyncio.timeout(15):
                    await holds(lambda: relay.report.sent == 10)
                service.commit(*mixed(10, "orders.created"))
                async with asyncio.timeout(4):
                    await holds(lambda: relay.report.sent == 20)
            async with asyncio.timeout(15):
                await holds(lambda: relay.report.sent == 30)
        assert (relay.report.conflicts, relay.report.broker_down) == (0, False)

    @pytest.mark.parametrize("kind", ["postgresql"])
    async def test_a_lock_on_lanes_of_one_queue_keeps_no_lane_of_the_others_at_a_stop(self, service: Service) -> None:
        table = service.table("lane")
        held = f"SELECT DISTINCT queue FROM {table} WHERE leased_until > now()"
        relay = Relay(service.url, Broker(), brokers={"payments.*": Broker()}, lane_lease_sec=120)
        with service.engine.connect() as connection:
            async with relay:
                await holds(lambda: len(service.rows(held)) == 2)
                connection.execute(text(f"SELECT 1 FROM {table} WHERE queue = '{PAYMENTS}' FOR UPDATE"))
            assert service.rows(held) == [(PAYMENTS,)]


def waits_for_a_lock(service: Service) -> bool:
    return bool(service.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("brokers", [None, ["payments.*"]], ids=["that does not know", "that knows"])
async def test_postgresql_wakes_the_relay_for_any_producer(service: Service, brokers: list[str] | None) -> None:
    payments = Broker()
    relay = Relay(service.url, Broker(), brokers={"payments.*": payments}, notify=True, poll_interval_sec=3600)
    async with relay:
        service.commit(*mixed(1, "payments.made"))
        await holds(lambda: payments.messages)
        outbox = Outbox(brokers=brokers, notify=True)
        with service.engine.begin() as connection:
            outbox.add(connection, "payments.made", {"n": 1})
            outbox.add_many(connection, mixed(4, first=2))
        await holds(lambda: len(payments.messages) == 6)


class TestWrongValues:
    @pytest.mark.parametrize("brokers", [{"a": 7}, {"a": None}, "a=stdout:", ["a"]])
    def test_what_is_no_table_of_brokers_is_refused(self, brokers: object) -> None:
        with pytest.raises(InvalidSetting, match="brokers"):
            Relay("sqlite://", brokers=brokers)  # type: ignore[arg-type]  # that is the point

    @pytest.mark.parametrize("pattern", ["", "x" * 256])
    def test_a_pattern_is_a_word(self, pattern: str) -> None:
        with pytest.raises(InvalidSetting, match="brokers"):
            Relay("sqlite://", brokers={pattern: "stdout:"})

    @pytest.mark.parametrize("patterns", ["payments.*", [""], ["x" * 256]])
    def test_an_outbox_takes_a_list_of_patterns(self, patterns: list[str]) -> None:
        with pytest.raises(InvalidSetting, match="brokers"):
            Outbox(brokers=patterns)

    def test_two_brokers_for_the_rest_are_one_too_many(self) -> None:
        with pytest.raises(InvalidSetting, match="both given"):
            Relay("sqlite://", "stdout:", brokers={"*": "stdout:"})

    @pytest.mark.parametrize("kind", ["sqlite"])
    async def test_a_url_that_is_none_is_named_by_its_pattern_and_not_shown(self, service: Service) -> None:
        with pytest.raises(InvalidSetting, match=r"payments.*carrier-pigeon") as refused:
            await Relay(service.url, "stdout:", brokers={"payments.*": "carrier-pigeon://u:s3cr3t@host"}).run_once()
        assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("kind", ["sqlite"])
class TestCommand:
    def test_each_topic_goes_to_its_broker(self, service: Service, capfd: pytest.CaptureFixture[str]) -> None:
        service.commit(*mixed(3))
        arguments = ["relay", "--broker", "stdout:", "--broker-for", "payments.*=stdout:", "--database", service.url]
        assert run([*arguments, "--until-empty"]) == 0
        lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert sorted(line["topic"] for line in lines) == sorted(TOPICS * 3)

    def test_R_5_once_fails_where_a_topic_has_no_broker_and_says_which(
        self, service: Service, capfd: pytest.CaptureFixture[str]
    ) -> None:
        service.commit(*mixed(3))
        assert run(["relay", "--once", "--broker-for", "payments.*=stdout:", "--database", service.url]) == 1
        captured = capfd.readouterr()
        assert len(captured.out.splitlines()) == 3
        assert "cannot be reached (topic:*): no broker is given for the topic " in captured.err

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (["--broker-for", "kafka://u:s3cr3t@host"], "PATTERN=URL"),
            (["--broker-for", "=kafka://u:s3cr3t@host"], "PATTERN=URL"),
            (["--broker-for", "a=memory:"], "memory: is for tests"),
            (["--broker-for", "*=stdout:"], "both given"),
            (["--broker-for", "a=pigeon://u:s3cr3t@host"], "pigeon: is not a broker"),
        ],
    )
    def test_wrong_values_are_one_line_without_secrets(
        self, service: Service, options: list[str], problem: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["relay", "--broker", "stdout:", *options, "--database", service.url]) == 2
        [line] = capfd.readouterr().err.splitlines()
        assert problem in line
        assert "s3cr3t" not in line

    def test_status_and_messages_show_say_what_waits_for_which_broker(
        self, service: Service, capfd: pytest.CaptureFixture[str]
    ) -> None:
        [message] = service.commit(Message.new("payments.made", {"n": 1}))
        service.execute(f"UPDATE {service.table('delivery')} SET queue = '{PAYMENTS}'")
        service.beat(PAYMENTS, "connection refused")
        assert run(["status", "--json", "--database", service.url]) == 0
        [relay] = json.loads(capfd.readouterr().out)["relays"]
        assert (relay["queue"], relay["broker_down"]) == (PAYMENTS, "connection refused")
        assert run(["messages", "show", str(message.id), "--json", "--database", service.url]) == 0
        shown = json.loads(capfd.readouterr().out)
        assert (shown["queue"], shown["reason"]) == (PAYMENTS, "broker_down")
        assert "connection refused" in shown["explanation"]
