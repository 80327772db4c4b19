"""What is wrong with one message or one topic holds back that alone, on every database."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Relay, RetryPolicy
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable
from postroom.telemetry.events import Event, Reachability, TargetChanged
from tests.acceptance.service import Service
from tests.acceptance.waiting import PATIENCE, wait_for
from tests.services.databases import need
from tests.services.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conftest import FreshDatabase

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
AT_ONCE = RetryPolicy.table([0], max_attempts=3)


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


class Choosy:
    """A broker that has no place for some topics, and is broken by some messages."""

    name = "choosy"
    capabilities = Capabilities()

    def __init__(self, *missing: str) -> None:
        self.missing = set(missing)
        self.taken: list[Message] = []
        self.tried: Counter[object] = Counter()
        self.calls = 0

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self.calls += 1
        self.tried.update(message.id for message in messages)
        outcomes: list[Outcome] = []
        for message in messages:
            if message.headers.get("poison") == "breaks":
                return self.break_off(messages, outcomes)
            if message.headers.get("poison") == "unroutable":
                outcomes.append(TargetUnavailable("no binding", by_message=True))
            elif message.topic in self.missing:
                outcomes.append(TargetUnavailable("no such queue"))
            else:
                self.taken.append(message)
                outcomes.append(ACCEPTED)
        return outcomes

    def break_off(self, messages: Sequence[Message], outcomes: list[Outcome]) -> Sequence[Outcome]:
        """Nobody knows of what was sent with it."""
        del outcomes
        taken = {message.id for message in messages}
        self.taken = [message for message in self.taken if message.id not in taken]
        raise BrokerUnavailable("the connection is lost")

    async def close(self) -> None:
        pass


class BreaksLate(Choosy):
    """What stood before the message that breaks the connection is taken."""

    def break_off(self, messages: Sequence[Message], outcomes: list[Outcome]) -> Sequence[Outcome]:
        return [*outcomes, *[Unreached("the connection is lost")] * (len(messages) - len(outcomes))]


def in_order_by_key(messages: Sequence[Message]) -> bool:
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        if message.key is not None:
            by_key[message.key].append(message.json()["n"])
    return all(numbers == sorted(numbers) for numbers in by_key.values())


def mixed(topic: str, count: int, **more: str) -> list[Message]:
    return [Message.new(topic, {"n": n}, key=f"{topic}{n % 7}" if n % 2 else None, headers=more) for n in range(count)]


def arrived(relay: Relay, wanted: int) -> bool:
    return relay.report.sent >= wanted or relay.report.dead > 0


async def others_until_dead(service: Service, relay: Relay, topic: str) -> None:
    """Send others now and then: only by these it shows that the fault is one message's."""
    async with asyncio.timeout(PATIENCE):
        while not relay.report.dead:
            wanted = relay.report.sent + 1
            service.commit(Message.new(topic, {"n": 0}))
            await wait_for(partial(arrived, relay, wanted))


async def test_R_9_many_messages_of_a_missing_topic_wait_and_are_tried_by_few(service: Service) -> None:
    service.commit(*mixed("orphan", 3000))
    good = service.commit(*mixed("good", 100))
    broker = Choosy("orphan")
    events: list[Event] = []
    relay = Relay(service.url, broker, batch=200, hook=events.append)
    async with relay:
        await wait_for(lambda: relay.report.sent == len(good) and service.status().pending == service.status().held)
        orphans_tried = len(broker.tried) - len(good)
        assert orphans_tried < 3000 / 2
        before = broker.tried.copy()
        await wait_for(lambda: (broker.tried - before).total() >= 3)
        assert len(broker.tried - before) > 1  # not always the same message
    [target] = service.status().targets
    assert (target.topic, target.reason) == ("orphan", "no such queue")
    assert (relay.report.retried, relay.report.dead, relay.report.broker_down) == (0, 0, False)
    assert service.rows(f"SELECT max(attempts) FROM {service.table('delivery')}") == [(0,)]
    assert relay.report.postponed < 2 * 3000
    assert not any(isinstance(event, Reachability) for event in events)


async def test_R_9_another_relay_finds_what_waits_and_frees_it(service: Service) -> None:
    orphans = service.commit(*mixed("orphan", 2000))
    report = await Relay(service.url, Choosy("orphan"), batch=500).run_once()
    assert (report.sent, report.targets_down) == (0, {"orphan": "no such queue"})
    broker = Choosy()
    events: list[Event] = []
    relay = Relay(service.url, broker, batch=500, hook=events.append)
    async with relay:
        await wait_for(lambda: relay.report.sent == len(orphans))
    assert in_order_by_key(broker.taken)
    assert len(broker.taken) == len(orphans)
    said = [event.available for event in events if isinstance(event, TargetChanged)]
    assert said in ([False, True], [])
    assert service.status().targets == ()


async def test_R_9_two_relays_free_a_topic_together_and_keep_the_order(service: Service) -> None:
    orphans = service.commit(*mixed("orphan", 600))
    broker = Choosy("orphan")
    first, second = Relay(service.url, broker, batch=50), Relay(service.url, broker, batch=50)
    async with first, second:
        await wait_for(lambda: service.status().pending == service.status().held)
        broker.missing.clear()
        await wait_for(lambda: first.report.sent + second.report.sent == len(orphans))
    assert in_order_by_key(broker.taken)
    assert Counter(message.id for message in broker.taken) == Counter(message.id for message in orphans)
    assert service.rows(f"SELECT DISTINCT attempts FROM {service.table('receipt')}") == [(0,)]


@pytest.mark.parametrize("broker", [Choosy(), BreaksLate()], ids=["breaks all", "breaks the rest"])
@pytest.mark.parametrize("key", [None, "k"], ids=["without a key", "with a key"])
async def test_R_9_a_message_that_breaks_the_connection_goes_dead_alone(
    service: Service, broker: Choosy, key: str | None
) -> None:
    broker = type(broker)()
    poison = Message.new("t", {"n": -1}, key=key, headers={"poison": "breaks"})
    good = mixed("t", 300)
    service.commit(*good[:3], poison, *good[3:])
    relay = Relay(service.url, broker, batch=50, policy=AT_ONCE)
    async with relay:
        await wait_for(lambda: relay.report.sent == 300)
        await others_until_dead(service, relay, "t")
    [letter] = service.dead()
    assert (letter.id, letter.error_code, letter.attempts) == (str(poison.id), "NOT_TAKEN", 3)
    assert in_order_by_key(broker.taken)
    assert relay.report.broker_down is False
    assert relay.report.retried == 2
    assert broker.tried[poison.id] < 20
    assert max(count for identity, count in broker.tried.items() if identity != poison.id) < 10


async def test_R_9_a_message_that_breaks_the_connection_holds_back_a_topic_of_its_own(service: Service) -> None:
    """Nothing shows whether the message or its topic is at fault: no attempt counts, and others go on."""
    poison = Message.new("odd", {"n": -1}, headers={"poison": "breaks"})
    service.commit(poison, *mixed("t", 100))
    relay = Relay(service.url, BreaksLate(), batch=50, policy=AT_ONCE)
    async with relay:
        await wait_for(lambda: relay.report.sent == 100 and service.status().targets)
    [target] = service.status().targets
    assert (target.topic, target.waiting, target.reason) == ("odd", 1, "the connection is lost")
    assert relay.report.retried == relay.report.dead == 0


async def test_R_9_a_message_that_is_refused_where_others_of_its_topic_are_taken_is_at_fault(service: Service) -> None:
    poison = Message.new("t", {"n": -1}, headers={"poison": "unroutable"})
    service.commit(poison, *mixed("t", 50))
    relay = Relay(service.url, Choosy(), batch=20, policy=AT_ONCE)
    async with relay:
        await wait_for(lambda: relay.report.sent == 50)
        await others_until_dead(service, relay, "t")
    [letter] = service.dead()
    assert (letter.id, letter.error_code) == (str(poison.id), "NOT_TAKEN")


@pytest.mark.parametrize("status", [403, 404, 410])
async def test_R_9_one_payload_that_a_webhook_does_not_want_goes_dead_alone(service: Service, status: int) -> None:
    receiver = need(Receiver)
    topic = f"payloads-{status}-{service.engine.dialect.name}"
    receiver.request("PUT", f"/{topic}")
    poison = Message.new(topic, {"n": -1}, headers={"answer": str(status)})
    service.commit(poison, *mixed(topic, 60))
    url = f"http://127.0.0.1:{receiver.port}/?postroom.private=true"
    relay = Relay(service.url, url, policy=AT_ONCE, broker_timeout_ms=20_000)
    async with relay:
        await wait_for(lambda: relay.report.sent == 60)
        await others_until_dead(service, relay, topic)
    [letter] = service.dead()
    assert (letter.id, letter.error_code) == (str(poison.id), "NOT_TAKEN")
    assert str(status) in letter.error_message


async def test_R_9_a_webhook_that_is_gone_is_asked_by_one_message_at_a_time(service: Service) -> None:
    receiver = need(Receiver)
    topic = f"status-410-{service.engine.dialect.name}"
    service.commit(*mixed(topic, 200))
    relay = Relay(service.url, f"http://127.0.0.1:{receiver.port}/?postroom.private=true", broker_timeout_ms=20_000)
    async with relay:
        await wait_for(lambda: len(receiver.request("GET", f"/{topic}").splitlines()) >= 3)
        asked = receiver.request("GET", f"/{topic}").splitlines()
    assert len(asked) <= 4
    assert len(set(asked)) > 1
    assert relay.report.broker_down is True
    assert relay.report.retried == relay.report.dead == relay.report.sent == 0
    assert service.rows(f"SELECT max(attempts) FROM {service.table('delivery')}") == [(0,)]
