"""Order by key, whatever frees a message that was held back, and whatever cuts a read short."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Outbox, Relay, RetryPolicy
from postroom.brokers.function import stops_at_failure
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome, Refused
from postroom.delivery.horizon import PATIENCE
from postroom.rules import ordering
from postroom.rules.ordering import key_hash, lane_of
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import FreshDatabase

SELDOM = 600.0
"""Seconds between two looks from the beginning: in these tests, too late."""
KEY, LANE_MATE = [key for key in map(str, range(200)) if lane_of(key_hash(key)) == 0][:2]

every_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


class Choosy:
    """A broker that refuses some messages for good, and keeps the others."""

    name = "choosy"
    capabilities = Capabilities(ordered_prefix=False)

    def __init__(self, refuses: Callable[[object], bool]) -> None:
        self._refuses = refuses
        self.kept: list[Message] = []

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        refused = [self._refuses(message.json()) for message in messages]
        self.kept += [message for message, no in zip(messages, refused, strict=True) if not no]
        return [Refused("MESSAGE_TOO_LARGE", "no") if no else ACCEPTED for no in refused]

    async def close(self) -> None:
        """Nothing to close."""

    def has_kept(self, count: int) -> bool:
        return len(self.kept) >= count

    def of(self, key: str) -> list[object]:
        return [message.json() for message in self.kept if message.key == key]


async def pass_by(service: Service, broker: Choosy, times: int = 6) -> None:
    """Have the relay read on in the lane, one message after another, until what is held lies behind it."""
    for n in range(times):
        sent = len(broker.kept)
        service.commit(Message.new("t", 100 + n, key=LANE_MATE))
        await wait_for(partial(broker.has_kept, sent + 1))
        await asyncio.sleep(0.03)  # so that it asks anew how far is safe


@every_database
async def test_L_17_a_discarded_message_lets_its_followers_go_in_order(service: Service) -> None:
    service.commit(Message.new("t", 1, key=KEY), Message.new("t", 2, key=KEY), Message.new("t", 3, key=KEY))
    broker = Choosy(lambda payload: payload == 1)
    async with Relay(service.url, broker, poll_interval_sec=SELDOM):
        await wait_for(lambda: len(service.dead()) == 1)
        await pass_by(service, broker)
        await asyncio.to_thread(service.discard, *service.dead())  # it may wait for a lock that the relay holds
        service.commit(Message.new("t", 4, key=KEY))
        await wait_for(lambda: len(broker.of(KEY)) == 3)
    assert broker.of(KEY) == [2, 3, 4]


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_L_16_a_transaction_that_stays_open_for_long_commits_before_its_key_goes_on(service: Service) -> None:
    """† Reads start ahead of it meanwhile; the one that finds the key's second message must find the first."""
    broker = Choosy(lambda _: False)
    async with Relay(service.url, broker, poll_interval_sec=SELDOM):
        await wait_for(lambda: bool(service.status().workers))
        for n in (1, 2):
            with service.engine.begin() as connection:
                Outbox().add(connection, "t", 1, key=KEY)
                await pass_by(service, broker, PATIENCE + 6)
            service.commit(Message.new("t", 2, key=KEY))
            await wait_for(lambda seen=2 * n: len(broker.of(KEY)) == seen)  # type: ignore[misc]
    assert broker.of(KEY) == [1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_R_4_lanes_of_a_killed_relay_are_taken_soon_after_their_leases_end(service: Service) -> None:
    """Within one and a half times the lease, however long it is until a silent relay counts as gone elsewhere."""
    seconds = 4.0
    broker = Choosy(lambda _: False)
    async with Relay(service.url, broker, lane_lease_sec=seconds, worker="survivor"):
        service.live_and_die(seconds, lanes=0)
        await wait_for(lambda: service.lanes_of("survivor") == ordering.LANES // 2)
        killed = time.monotonic()
        service.live_and_die(seconds, lanes=ordering.LANES // 2)
        service.commit(*[Message.new("t", n, key=f"key {n}") for n in range(64)])
        await wait_for(lambda: broker.has_kept(64))
        taken = time.monotonic()
    assert taken - killed < 1.5 * seconds


@every_database
async def test_L_16_a_function_that_stops_at_failures_gets_a_keys_messages_together(service: Service) -> None:
    service.commit(*[Message.new("t", n, key=KEY) for n in range(200)])
    arrived: list[object] = []
    failed: set[object] = set()
    calls = 0

    @stops_at_failure
    async def publish(messages: list[Message]) -> list[Outcome]:
        nonlocal calls
        calls += 1
        outcomes: list[Outcome] = []
        for message in messages:
            if message.json() in {3, 4, 150} - failed:
                failed.add(message.json())
                return [*outcomes, Refused("BUSY")]
            arrived.append(message.json())
            outcomes.append(ACCEPTED)
        return outcomes

    await Relay(service.url, publish, backoff_sec=[0]).run_until_empty()
    assert arrived == list(range(200))
    assert calls < 20


@every_database
@pytest.mark.parametrize("stops", [True, False], ids=["stops at failures", "plain"])
async def test_R_9_a_message_that_makes_a_list_fail_takes_no_other_with_it(service: Service, *, stops: bool) -> None:
    """Before, the whole list went to the dead letters with it."""
    service.commit(*[Message.new("t", n, key=f"key {n % 7}" if n < 70 else None) for n in range(100)])
    poison = {66, 69, 80}
    arrived: dict[str | None, list[int]] = defaultdict(list)
    failed_alone: list[int] = []

    async def publish(messages: list[Message]) -> None:
        for message in messages:
            if message.json() in poison:
                failed_alone.extend([message.json()] * (len(messages) == 1))
                raise KeyError("poison")
            arrived[message.key].append(message.json())

    relay = Relay(service.url, stops_at_failure(publish) if stops else publish, max_attempts=3, backoff_sec=[0])
    report = await relay.run_until_empty()
    assert (report.sent, report.retried, report.dead) == (97, 6, 3)
    assert sorted(failed_alone) == sorted([*poison] * 3)
    assert [letter.attempts for letter in service.dead()] == [3, 3, 3]
    for n in range(7):
        first_arrivals = list(dict.fromkeys(arrived[f"key {n}"]))
        assert first_arrivals == [number for number in range(n, 70, 7) if number not in poison]
    assert {*arrived[None]} == {*range(70, 100)} - poison


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_R_9_suspects_that_take_a_call_each_hold_up_no_others(service: Service) -> None:
    service.commit(*[Message.new("bad", n) for n in range(64)])
    lists: list[int] = []
    before: list[int] = []
    arrived = asyncio.Event()

    async def publish(messages: list[Message]) -> None:
        if messages[0].topic == "good":
            before.extend(lists)
            arrived.set()
            return
        lists.append(len(messages))
        if sum(lists) > 64:  # suspects by now
            await arrived.wait()
        raise KeyError("bad")

    async with Relay(service.url, publish, batch=32, concurrency=2, poll_interval_sec=0.02, broker_timeout_ms=20_000):
        await wait_for(lambda: sum(lists) >= 96)
        service.commit(Message.new("good", 0))
        await wait_for(arrived.is_set)
    assert before == [32] * 3, "one call with suspects was under way"


@every_database
async def test_L_16_expired_messages_that_fill_a_read_do_not_let_others_overtake(service: Service) -> None:
    """A read that ends at its limit of bytes has not come to what lies behind, whatever became of what it found."""
    tried: list[object] = []

    class Broker(Choosy):
        async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
            for message in messages:
                if message.json() == 1:
                    tried.append(1)
                    if len(tried) == 1:
                        return [Refused("TIMEOUT", "not now")] * len(messages)
            outcomes = await super().publish(messages, timeout)
            if any(message.json() == 1 for message in messages):
                service.commit(*[Message.new("t", n, key=KEY) for n in range(21, 26)])
            return outcomes

    service.commit(Message.new("t", 1, key=KEY))
    broker = Broker(lambda _: False)
    policy = RetryPolicy.table((3.0,), max_attempts=5)
    relay = Relay(service.url, broker, policy=policy, poll_interval_sec=1.0, max_in_flight_bytes=1000)
    async with relay:
        await wait_for(lambda: len(tried) == 1 and service.status().waiting == 1)
        service.commit(
            Message.new("t", ["x" * 1200], key=KEY, type="late"), *[Message.new("t", n, key=KEY) for n in range(2, 21)]
        )
        service.execute(f"UPDATE {service.table('outbox')} SET expires_at = created_at WHERE type = 'late'")
        await pass_by(service, broker)
        await wait_for(lambda: len(broker.of(KEY)) == 25)
    assert broker.of(KEY) == list(range(1, 26))
