"""Consumers that are killed at the worst places, on real brokers: each message has its effect, and has it once."""

from __future__ import annotations

import random
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.contract.sources.source_rigs import (
    KafkaSourceRig,
    NatsSourceRig,
    RabbitSourceRig,
    RedisSourceRig,
    ServerSourceRig,
)
from tests.crash import relay_worker
from tests.crash.billing import Billing, out_of_order
from tests.crash.consumer_worker import Fate, Point, send
from tests.crash.places import Places, Told
from tests.crash.processes import dismiss, wait_until
from tests.crash.shop import Shop
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom import Message
    from tests.conftest import FreshDatabase
    from tests.crash.processes import Processes, Worker

EITHER = pytest.mark.parametrize(
    ("rig_kind", "kind", "key"),
    [
        pytest.param(NatsSourceRig, "postgresql", "a", id="nats-postgresql-keyed"),
        pytest.param(NatsSourceRig, "sqlite", None, id="nats-sqlite-unkeyed"),
    ],
)
DEATHS = [(Point.HANDLING, 0), (Point.HANDLED, 0), (Point.PARKED, 1), (Point.HANDLED, 2)]
"""Points, and how often the handler fails before them."""
OTHERS = pytest.mark.parametrize(
    ("rig_kind", "kind", "deaths"),
    [
        pytest.param(RedisSourceRig, "sqlite", DEATHS, id="redis-sqlite"),
        pytest.param(RabbitSourceRig, "postgresql", DEATHS, id="rabbitmq-postgresql"),
        pytest.param(KafkaSourceRig, "postgresql", DEATHS[1:3], id="kafka-postgresql"),  # each death costs it seconds
    ],
)


@pytest.fixture
def billing(
    rig_kind: type[ServerSourceRig], kind: str, ready_database: FreshDatabase, processes: Processes
) -> Iterator[Billing]:
    with closing(Billing(rig_kind(), ready_database(kind), processes)) as billing:
        yield billing


def killed(billing: Billing, fate: Fate) -> None:
    """A process of the service meets its fate."""
    victim = billing.start(f"victim-{fate.number}", fate)
    wait_until(victim.ended, f"it dies {fate.point}")
    assert victim.killed()


@EITHER
def test_I_1_a_consumer_that_dies_in_a_handler_leaves_nothing_and_the_message_comes_again(
    billing: Billing, key: str | None
) -> None:
    billing.publish(billing.order(1, key), billing.order(2, key))
    killed(billing, Fate(Point.HANDLING, 1))
    assert 1 not in billing.billed()
    survivor = billing.start("survivor")
    wait_until(lambda: billing.count() == 2, "both are handled")
    dismiss(survivor)
    assert billing.billed() == {1: 1, 2: 1}
    assert [call.worker for call in billing.rooms.all_calls() if call.number == 1] == ["victim-1", "survivor"]
    assert billing.parked() == 0  # a crash burns no attempt


@EITHER
def test_E_3_a_crash_between_commit_and_acknowledge_leads_to_a_duplicate_that_is_skipped(
    billing: Billing, key: str | None
) -> None:
    billing.publish(billing.order(1, key))
    killed(billing, Fate(Point.HANDLED, 1))
    assert billing.billed() == {1: 1}
    survivor = billing.start("survivor")
    wait_until(lambda: billing.said("duplicate", 1, "survivor"), "it comes again")
    billing.publish(billing.order(2, key))
    wait_until(lambda: billing.said("handled", 2, "survivor"), "the next is handled")
    dismiss(survivor)
    assert billing.billed() == {1: 1, 2: 1}
    assert [call.worker for call in billing.rooms.all_calls() if call.number == 1] == ["victim-1"]


@EITHER
def test_I_4_a_message_that_was_parked_and_not_acknowledged_is_parked_once_and_handled_once(
    billing: Billing, key: str | None
) -> None:
    billing.publish(billing.order(1, key, failures=1))
    killed(billing, Fate(Point.PARKED, 1))
    assert (billing.count(), billing.parked()) == (0, 1)
    survivor = billing.start("survivor")
    wait_until(lambda: not billing.shop.unsent() and fates_of(billing, "survivor") >= 2, "it came both ways")
    dismiss(survivor)
    assert (billing.billed(), billing.parked()) == ({1: 1}, 1)
    assert billing.rooms.calls_of(1) == 2


@EITHER
def test_I_4_a_crash_before_the_commit_of_a_retry_leaves_neither_effect_nor_settlement(
    billing: Billing, key: str | None
) -> None:
    billing.publish(billing.order(1, key, failures=2))
    killed(billing, Fate(Point.HANDLING, 1))
    assert (billing.count(), billing.shop.unsent()) == (0, 1)
    survivor = billing.start("survivor")
    wait_until(lambda: not billing.shop.unsent(), "the retry is settled")
    dismiss(survivor)
    assert (billing.billed(), billing.parked(), billing.rooms.calls_of(1)) == ({1: 1}, 1, 4)


@EITHER
def test_I_4_a_crash_after_the_commit_of_a_retry_finds_it_settled(billing: Billing, key: str | None) -> None:
    billing.publish(billing.order(1, key, failures=2))
    killed(billing, Fate(Point.HANDLED, 1))
    assert (billing.billed(), billing.shop.unsent(), billing.parked()) == ({1: 1}, 0, 1)
    assert billing.rooms.calls_of(1) == 3


@pytest.mark.parametrize("point", [Point.HANDLING, Point.HANDLED], ids=["before-commit", "after-commit"])
@pytest.mark.parametrize(
    ("rig_kind", "kind"), [(NatsSourceRig, "postgresql")]
)  # on SQLite the paused process may be the one writer
def test_E_3_a_consumer_that_wakes_after_another_has_its_message_has_no_second_effect(
    billing: Billing, point: Point
) -> None:
    billing.publish(billing.order(1, "a"))
    zombie = billing.start("zombie", Fate(point, 1, signal.SIGSTOP))
    wait_until(zombie.stopped, "it is paused")
    other = billing.start("other")
    if point is Point.HANDLING:
        wait_until(billing.waits_for_a_lock, "the other has it too, and waits for the end of the first")
    else:
        wait_until(lambda: billing.said("duplicate", 1, "other"), "the other has it too, and skips it")
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: billing.said("duplicate", 1, "other"), "the other finds that it is done")
    dismiss(zombie, other)
    assert (billing.billed(), billing.rooms.calls_of(1), billing.parked()) == ({1: 1}, 1, 0)


def fates_of(billing: Billing, worker: str) -> int:
    return sum(one.worker == worker for one in billing.rooms.all_fates())


@OTHERS
def test_E_3_wherever_consumers_die_each_message_has_one_effect_on_the_other_brokers_too(
    billing: Billing, deaths: list[tuple[Point, int]]
) -> None:
    for number, (point, failures) in enumerate(deaths):
        billing.publish(billing.order(number, f"key-{number}", failures))
        killed(billing, Fate(point, number))
    survivor = billing.start("survivor")
    last = len(deaths)
    billing.publish(billing.order(last))
    wait_until(lambda: done(billing, last + 1), "all is handled")
    unparked = deaths.index((Point.HANDLED, 0))
    wait_until(lambda: billing.said("duplicate", unparked), "what was handled and not acknowledged comes again")
    dismiss(survivor)
    assert billing.billed() == dict.fromkeys(range(last + 1), 1)
    assert billing.parked() == sum(failures > 0 for _, failures in deaths)
    assert billing.rooms.calls_of(unparked) == 1


@pytest.mark.parametrize(("rig_kind", "kind"), [pytest.param(RedisSourceRig, "sqlite", id="redis-sqlite")])
def test_E_3_a_relay_dies_in_mid_send_and_the_inbox_stops_the_second_effect(
    billing: Billing, processes: Processes, ready_database: FreshDatabase
) -> None:
    with closing(Shop(ready_database("sqlite"))) as shop:
        shop.commit(*(billing.order(number) for number in range(20)))
        fate = relay_worker.Fate(signal.SIGKILL, relay_worker.Point.PUBLISHED, keyed=False)
        victim = processes.start("relay", send, shop.url, billing.source_rig.url(), fate)
        wait_until(victim.killed, "a relay dies between publishing and the settle")
        assert shop.unsent() == 20
        consumer = billing.start("consumer")
        wait_until(lambda: billing.count() == 20, "what was sent is handled")
        other = processes.start("other", send, shop.url, billing.source_rig.url())
        wait_until(lambda: not shop.unsent(), "all is sent again")
        wait_until(lambda: len(billing.rooms.all_fates()) == 40, "all has come twice")
        dismiss(consumer, other)
    assert billing.billed() == dict.fromkeys(range(20), 1)
    assert len(billing.rooms.all_calls()) == 20


@pytest.mark.parametrize(("rig_kind", "kind"), [(NatsSourceRig, "postgresql")])
def test_I_2_consumers_go_on_when_the_broker_is_killed_and_back(billing: Billing, processes: Processes) -> None:
    server = billing.source_rig.rig.server
    shop = billing.shop
    relay = processes.start("relay", send, shop.url, billing.source_rig.url())
    consumers = [billing.start(name) for name in ("one", "two")]
    for outage in range(2):
        first = outage * 300
        shop.commit(*(billing.order(number, f"key-{number % 20}") for number in range(first, first + 300)))
        wait_until(lambda: billing.count() > first + 50, "they are at work")  # noqa: B023 - called at once
        server.stop(kill=True)
        try:
            for one in consumers:
                wait_until(lambda: len(told(billing, one)) > 2 * outage, "it says that the broker is gone")  # noqa: B023 - as above
        finally:
            server.start()
        wait_until(lambda: billing.count() == first + 300, "all is handled")  # noqa: B023 - as above
    wait_until(lambda: not shop.unsent(), "all is sent")
    server.stop(kill=True)
    try:
        dismiss(relay, *consumers)  # they end all the same
    finally:
        server.start()
    assert billing.billed() == dict.fromkeys(range(600), 1)
    for one in consumers:
        assert [word.reachable for word in told(billing, one)[:2]] == [False, True]


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server that the test may kill."""
    with closing(need(PostgreSQL, PostgreSQL())) as server:
        server.create_database("billing")
        yield server


def test_I_2_a_consumer_goes_on_when_its_database_is_killed_and_back_and_hardly_burns_an_attempt(
    server: PostgreSQL, processes: Processes
) -> None:
    with closing(Billing(NatsSourceRig(), server.url("billing"), processes)) as billing:
        consumer = billing.start("consumer")
        billing.publish(*(billing.order(number, f"key-{number % 20}") for number in range(400)))
        wait_until(lambda: billing.count() > 100, "it is at work")
        server.stop(kill=True)
        wait_until(lambda: told(billing, consumer), "it says that the database is gone")
        server.start()
        wait_until(lambda: done(billing, 400), "all is handled")
        assert billing.billed() == dict.fromkeys(range(400), 1)
        # A handler may fail a moment before the database is back, and be parked a moment after: that is one attempt.
        assert billing.shop.select("SELECT coalesce(max(attempts), 0) FROM {receipt}")[0][0] <= 1
        assert told(billing, consumer) == [Told("database", reachable=False), Told("database", reachable=True)]
        server.stop(kill=True)
        dismiss(consumer)  # it ends all the same


@pytest.mark.parametrize(("rig_kind", "kind"), [(NatsSourceRig, "postgresql")])
def test_E_3_of_two_thousand_messages_each_has_one_effect_whatever_is_killed(
    billing: Billing, processes: Processes, ready_database: FreshDatabase
) -> None:
    chance = random.Random(19)  # noqa: S311 - repeatable, not secret
    with closing(Shop(ready_database("postgresql"))) as shop:

        def order(number: int) -> Message:
            return billing.order(number, f"key-{number % 50}", failures=int(chance.random() < 0.05))

        def commit(numbers: range) -> None:
            for first in numbers[::250]:
                shop.commit(*(order(number) for number in range(first, first + 250)))

        relay = processes.start("relay", send, shop.url, billing.source_rig.url())
        consumers = [billing.start(f"first-{number}") for number in range(2)]
        commit(range(2000))
        for number in range(6):
            goal = billing.count() + chance.randrange(20, 120)
            wait_until(lambda: billing.count() >= goal, "they are at work")  # noqa: B023 - called at once
            victim = consumers.pop(chance.randrange(2))
            victim.signal(signal.SIGKILL)
            wait_until(victim.killed, "it is dead")
            consumers.append(billing.start(f"next-{number}"))
        wait_until(lambda: done(billing, 2000), "all is handled")
        dismiss(*consumers)
        dismiss(relay)
    assert billing.billed() == dict.fromkeys(range(2000), 1)
    assert billing.shop.status().dead == 0


def test_I_2_order_by_key_is_kept_when_one_process_hands_over_to_the_next(
    processes: Processes, ready_database: FreshDatabase
) -> None:
    chance = random.Random(20)  # noqa: S311 - repeatable, not secret
    with closing(Billing(NatsSourceRig(), ready_database("postgresql"), processes, hasty=False)) as billing:
        failing = {number for number in range(600) if chance.random() < 0.05}
        billing.publish(*(billing.order(number, f"key-{number % 50}", int(number in failing)) for number in range(600)))
        for name in ("one", "two"):
            goal = billing.count() + 150
            process = billing.start(name)
            wait_until(lambda: billing.count() >= goal, "it is at work")  # noqa: B023 - called at once
            dismiss(process)
        last = billing.start("three")
        wait_until(lambda: done(billing, 600), "all is handled")
        dismiss(last)
        assert billing.billed() == dict.fromkeys(range(600), 1)
        assert out_of_order(billing.bills()) == []
        assert {bill.worker for bill in billing.bills()} == {"one", "two", "three"}


def done(billing: Billing, count: int) -> bool:
    return billing.count() >= count and not billing.shop.unsent()


def told(billing: Billing, worker: Worker) -> list[Told]:
    return Places(billing.rooms.directory).said(worker.name)
