"""The relay through its public surface, on every database."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome, Refused, Unreached
from postroom.telemetry.events import Event, Reachability
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conftest import FreshDatabase

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


async def test_what_is_committed_is_delivered_once_and_in_order_of_its_key(service: Service) -> None:
    messages = service.commit(*(Message.new("t", {"n": n}, key=f"k{n % 7}" if n % 3 else None) for n in range(500)))
    broker = MemoryBroker()
    report = await Relay(service.url, broker).run_once()
    assert report.sent == 500
    assert sorted(message.id for message in broker.messages) == sorted(message.id for message in messages)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for message in broker.messages:
        by_key[message.key].append(message.json()["n"])
    assert all(numbers == sorted(numbers) for key, numbers in by_key.items() if key is not None)
    status = service.status()
    assert (status.sent, status.pending, status.sending) == (500, 0, 0)


async def test_E_4_a_failing_send_raises_attempts_and_a_second_run_sends_nothing_settled(service: Service) -> None:
    service.commit(*(Message.new("t", {"n": n}) for n in range(3)))
    sent: list[int] = []

    def publish(message: Message) -> None:
        if message.json()["n"] == 1:
            raise RuntimeError("no")
        sent.append(message.json()["n"])

    first = await Relay(service.url, publish).run_once()
    assert (first.sent, first.retried) == (2, 1)
    second = await Relay(service.url, publish).run_once()
    assert (second.sent, second.retried, sorted(sent)) == (0, 0, [0, 2])
    assert service.status().waiting == 1


async def test_L_10_out_of_attempts_is_dead_and_told(service: Service) -> None:
    service.commit(Message.new("t", {"n": 1}))
    told: list[tuple[str, str]] = []
    relay = Relay(
        service.url,
        lambda _: {"status": "error", "reason_code": "NOPE"},
        policy=RetryPolicy.table([0], max_attempts=2),
        on_dead=lambda message, code, _: told.append((message.topic, code)),
    )
    report = await relay.run_once()
    assert (report.retried, report.dead, told) == (1, 1, [("t", "NOPE")])
    assert service.status().dead == 1


class Flaky:
    """Refuses the first try of every third number; cannot keep an order itself."""

    name = "flaky"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.tried: set[object] = set()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        return [self._one(message) for message in messages]

    def _one(self, message: Message) -> Outcome:
        if message.json()["n"] % 3 == 0 and message.id not in self.tried:
            self.tried.add(message.id)
            return Refused("BUSY", "come again")
        self.taken.append(message)
        return ACCEPTED

    async def close(self) -> None:
        pass


async def test_L_16_order_by_key_holds_across_failures_and_retries(service: Service) -> None:
    service.commit(*(Message.new("t", {"n": n}, key=f"k{n % 5}") for n in range(200)))
    broker = Flaky()
    report = await Relay(service.url, broker, policy=RetryPolicy.table([0], max_attempts=3), batch=40).run_once()
    assert report.sent == 200
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for message in broker.taken:
        by_key[message.key].append(message.json()["n"])
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 200


class Down:
    """A broker that cannot be reached until it is told to come up."""

    name = "down"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.up = False
        self.calls = 0
        self.tried_thrice = asyncio.Event()
        self.messages: list[Message] = []

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self.calls += 1
        if self.calls == 3:
            self.tried_thrice.set()
        if not self.up:
            return [Unreached("refused")] * len(messages)
        self.messages.extend(messages)
        return [ACCEPTED] * len(messages)

    async def close(self) -> None:
        pass


async def test_R_5_a_broker_that_is_down_burns_no_attempt_and_is_said_once(service: Service) -> None:
    service.commit(*(Message.new("t", {"n": n}, key=None if n % 2 else str(n)) for n in range(100)))
    broker = Down()
    events: list[Event] = []
    all_sent = asyncio.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if relay.report.sent == 100:
            all_sent.set()

    relay = Relay(service.url, broker, hook=listen)
    async with asyncio.timeout(30), relay:
        await broker.tried_thrice.wait()
        broker.up = True
        await all_sent.wait()
    assert relay.report.retried == relay.report.dead == 0
    said = [event.reachable for event in events if isinstance(event, Reachability)]
    assert said == [False, True]
    status = service.status()
    assert (status.sent, status.pending, status.sending) == (100, 0, 0)


async def test_R_4_a_stopping_relay_leaves_nothing_leased(service: Service) -> None:
    service.commit(*(Message.new("t", {"n": n}, key=None if n % 2 else str(n)) for n in range(200)))
    started = asyncio.Event()

    async def slow(_: Message) -> None:
        started.set()
        await asyncio.sleep(0.02)

    relay = Relay(service.url, slow)
    async with asyncio.timeout(30), relay:
        await started.wait()
    status = service.status()
    assert status.sending == 0
    assert status.sent + status.pending == 200
    assert status.sent == relay.report.sent > 0
    rest = await Relay(service.url, MemoryBroker()).run_once()
    assert rest.sent == status.pending


async def test_R_5_an_answer_to_what_was_sent_before_the_broker_went_down_does_not_mean_that_it_is_back(
    service: Service,
) -> None:
    service.commit(*(Message.new("t", {"n": n}) for n in range(4)))
    said: list[bool] = []
    flying, gone, late_answer, all_sent = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    up = False

    async def publish(message: Message) -> None:
        if message.json()["n"] == 0:
            flying.set()
            await gone.wait()
        elif not up:
            await flying.wait()  # a database may give them in another order
            raise ConnectionRefusedError("nobody listens")

    def listen(event: Event) -> None:
        if isinstance(event, Reachability):
            said.append(event.reachable)
            gone.set()
        if relay.report.sent:
            late_answer.set()
        if relay.report.sent == 4:
            all_sent.set()

    relay = Relay(service.url, publish, batch=1, hook=listen)
    async with asyncio.timeout(30), relay:
        await late_answer.wait()
        assert said == [False]
        up = True
        await all_sent.wait()
    assert said == [False, True]
