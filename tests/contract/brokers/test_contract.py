"""One contract for all brokers, against real servers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from postroom import Message, Relay, RetryPolicy
from postroom.brokers.port import Accepted, Outcome, Refused, Unreached
from postroom.delivery.attempt import GRACE
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason
from postroom.telemetry.events import Reachability, Settled, TargetChanged
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.brokers.port import Broker
    from postroom.telemetry.events import Event
    from tests.acceptance.service import Service
    from tests.contract.brokers.rigs import Rig

TIMEOUT = 30

PATIENCE = 180  # seconds: a RabbitMQ that is killed and started again on a busy machine


async def published(broker: Broker, messages: Sequence[Message], seconds: float = TIMEOUT) -> Sequence[Outcome]:
    """What the relay makes of it: `BrokerUnavailable` is `Unreached` for all."""
    try:
        return await broker.publish(messages, seconds)
    except BrokerUnavailable as error:
        return [Unreached(str(error))] * len(messages)


def kinds(outcomes: Sequence[Outcome]) -> set[type[Outcome]]:
    return {type(outcome) for outcome in outcomes}


async def test_L_16_the_exact_set_arrives_and_each_key_in_order(rig: Rig, service: Service, topic: str) -> None:
    await rig.declare(topic)
    committed = service.commit(*(Message.new(topic, {"n": n}, key=n % 500) for n in range(rig.many)))
    report = await Relay(service.url, rig.url(), broker_timeout_ms=TIMEOUT * 1000).run_once()
    assert (report.sent, report.retried, report.dead) == (rig.many, 0, 0)
    arrived = await rig.received(topic)
    assert sorted(event.id for event in arrived) == sorted(str(message.id) for message in committed)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for event in arrived:
        assert event.position is not None
        by_key[event.key].append(event.position)
    assert len(by_key) == 500
    assert all(positions == sorted(positions) for positions in by_key.values())


async def test_B_1_everything_that_a_message_has_arrives(rig: Rig, topic: str) -> None:
    await rig.declare(topic)
    message = Message.new(
        topic,
        "Grüße",
        key="k 1",
        type="Greeted",
        aggregate_type="person",
        aggregate_id="Ü",
        headers={"traceparent": "00-ab-cd-01", "city": "Köln", "ce-id": "mine", "ce_id": "mine", "odd name": " a "}
        | {"x-tenant": "7", "x-death": "mine", "cc": "mine", "bcc": "a", "nats-rollup": "all", "cookie": "b"},
    )
    message = msgspec.structs.replace(message, position=42)
    tombstone = Message.new(topic, None, key="k 1")
    for mode in ("binary", "structured"):
        broker = rig.broker(rig.url(mode=mode, source="/shop"))
        for one in (message, tombstone):
            assert kinds(await published(broker, [one])) == {Accepted}
        await broker.close()
        # a new id, lest the broker take the second for a repetition
        message, tombstone = (msgspec.structs.replace(one, id=Message.new("t").id) for one in (message, tombstone))
    full, empty, *structured = await rig.received(topic)
    assert (full.payload, full.content_type, full.key) == ("Grüße".encode(), "text/plain; charset=utf-8", "k 1")
    assert (full.type, full.aggregate_type, full.aggregate_id, full.position) == ("Greeted", "person", "Ü", 42)
    assert (full.topic, full.source, dict(full.headers)) == (topic, "/shop", dict(message.headers))
    assert empty.payload is None
    assert [(one.payload, one.type, one.headers) for one in structured] == [
        (one.payload, one.type, one.headers) for one in (full, empty)
    ]


async def test_what_a_broker_declares_is_so(rig: Rig, broker: Broker, topic: str) -> None:
    await rig.declare(topic)
    can = broker.capabilities
    messages = [Message.new(topic, {"n": n}, key="k", headers={"n": str(n)}) for n in range(200)]
    outcomes = await published(broker, messages)
    assert kinds(outcomes) == {Accepted}
    arrived = await rig.received(topic)
    if can.ordered:
        assert [event.id for event in arrived] == [str(message.id) for message in messages]
    if can.headers:
        assert {event.headers["n"] for event in arrived} == {str(n) for n in range(200)}
    if can.places:
        assert len({outcome.answer for outcome in outcomes if isinstance(outcome, Accepted)}) == 200
    await rig.declare(f"{topic}-again")
    again = Message.new(f"{topic}-again", "a")
    assert [kinds(await published(broker, [again])) for _ in range(2)] == [{Accepted}] * 2
    assert len(await rig.received(again.topic)) == (1 if can.dedup_seconds else 2)
    if can.max_bytes is not None:
        [outcome] = await published(broker, [Message.new(topic, b"x" * (can.max_bytes + 1))])
        assert isinstance(outcome, Refused)
        assert outcome.code == Reason.MESSAGE_TOO_LARGE


async def test_R_5_an_unreachable_server_burns_no_attempt(rig: Rig, service: Service, topic: str) -> None:
    url = rig.url(port=free_port())
    broker = rig.broker(url)
    assert kinds(await published(broker, [Message.new(topic, "a")] * 3, 1.0)) == {Unreached}
    await broker.close()
    service.commit(*(Message.new(topic, {"n": n}) for n in range(3)))
    report = await Relay(service.url, url, broker_timeout_ms=1000).run_once()
    assert (report.sent, report.retried, report.dead) == (0, 0, 0)
    assert service.rows(f"SELECT DISTINCT attempts FROM {service.table('delivery')}") == [(0,)]


async def test_R_5_a_killed_server_is_found_again_and_nothing_is_lost(rig: Rig, service: Service, topic: str) -> None:
    await rig.declare(topic)
    some_are_sent, it_is_gone, all_are_sent = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def hook(event: Event) -> None:
        if isinstance(event, Settled):
            some_are_sent.set()
            if service.status().sent == 600:
                all_are_sent.set()
        if isinstance(event, Reachability):
            it_is_gone.set()

    committed = service.commit(*(Message.new(topic, {"n": n}, key=n % 20) for n in range(300)))
    soon = RetryPolicy.table([0.2], max_attempts=20)
    relay = Relay(service.url, rig.url(), batch=20, hook=hook, broker_timeout_ms=5000, policy=soon)
    async with asyncio.timeout(PATIENCE), relay:
        await some_are_sent.wait()
        rig.server.stop(kill=True)
        committed += service.commit(*(Message.new(topic, {"n": n}, key=n % 20) for n in range(300, 600)))
        await it_is_gone.wait()
        await rig.restart()
        await all_are_sent.wait()
    arrived = await rig.received(topic)
    assert {event.id for event in arrived} == {str(message.id) for message in committed}
    assert service.status().dead == 0


async def test_L_9_what_is_too_large_is_dead_and_harms_no_other(rig: Rig, service: Service, topic: str) -> None:
    await rig.declare(topic)
    before, large, after = service.commit(
        *(Message.new(topic, payload) for payload in ("before", b"x" * rig.too_large, "after"))
    )
    report = await Relay(service.url, rig.url(), broker_timeout_ms=TIMEOUT * 1000).run_once()
    assert (report.sent, report.dead, report.retried) == (2, 1, 0)
    [letter] = service.dead()
    assert (str(letter.id), letter.error_code) == (str(large.id), Reason.MESSAGE_TOO_LARGE)
    assert "bytes" in letter.error_message or "413" in letter.error_message
    assert {event.id for event in await rig.received(topic)} == {str(before.id), str(after.id)}


async def test_L_9_what_is_unroutable_is_dead_and_harms_no_other(rig: Rig, service: Service) -> None:
    found = await rig.unroutable()
    if found is None:
        return
    url, topic, code = found
    service.commit(Message.new(topic, "a"))
    report = await Relay(service.url, url, broker_timeout_ms=TIMEOUT * 1000).run_once()
    assert (report.dead, report.broker_down) == (1, False)
    [letter] = service.dead()
    assert (letter.topic, letter.error_code) == (topic, code)
    assert letter.error_message


async def test_R_5_a_target_that_is_not_set_up_burns_no_attempt(rig: Rig, broker: Broker, topic: str) -> None:
    outcomes = await published(broker, [Message.new(topic, {"n": n}) for n in range(3)])
    assert kinds(outcomes) == rig.not_set_up
    await rig.declare(topic)
    assert kinds(await published(broker, [Message.new(topic, "a")])) == {Accepted}


async def test_R_9_a_target_that_is_missing_holds_back_its_own_messages_only(
    rig: Rig, service: Service, topic: str
) -> None:
    """What waits for it arrives when it is made, in order by key, without any command."""
    if not rig.topics:
        return
    orphan = f"{topic}-orphan"
    await rig.declare(topic)
    orphans = service.commit(*(Message.new(orphan, {"n": n}, key=f"o{n % 5}" if n % 2 else None) for n in range(120)))
    good = service.commit(*(Message.new(topic, {"n": n}, key=f"g{n % 5}" if n % 2 else None) for n in range(120)))
    events: list[Event] = []
    settled = asyncio.Event()

    def listen(event: Event) -> None:
        events.append(event)
        settled.set()

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            settled.clear()
            await settled.wait()

    relay = Relay(service.url, rig.url(), broker_timeout_ms=TIMEOUT * 1000, hook=listen)
    async with asyncio.timeout(PATIENCE), relay:
        await until(lambda: relay.report.sent == len(good) and relay.report.postponed > 0)
        assert {event.id for event in await rig.received(topic)} == {str(message.id) for message in good}
        more = service.commit(Message.new(topic, "later", key="g1"), Message.new(topic, "later"))
        await until(lambda: relay.report.sent == len(good) + len(more))
        [target] = service.status().targets
        assert (target.topic, target.waiting > 0, bool(target.reason)) == (orphan, True, True)
        assert target.since is not None
        await rig.declare(orphan)
        await until(lambda: relay.report.sent == len(good) + len(more) + len(orphans))
    assert (relay.report.retried, relay.report.dead, relay.report.broker_down) == (0, 0, False)
    assert not any(isinstance(event, Reachability) for event in events)
    said = [(event.topic, event.available) for event in events if isinstance(event, TargetChanged)]
    assert said == [(orphan, False), (orphan, True)]
    arrived = await rig.received(orphan)
    assert {event.id for event in arrived} == {str(message.id) for message in orphans}
    by_key: dict[str, list[int]] = defaultdict(list)
    for event in arrived:
        if event.key is not None and event.position is not None:
            by_key[event.key].append(event.position)
    assert len(by_key) == 5
    assert all(positions == sorted(positions) for positions in by_key.values())
    assert service.rows(f"SELECT DISTINCT attempts FROM {service.table('receipt')}") == [(0,)]
    assert service.status().targets == ()


async def test_R_2_a_server_that_is_silent_runs_into_the_timeout(rig: Rig, broker: Broker, topic: str) -> None:
    await rig.declare(topic)
    assert kinds(await published(broker, [Message.new(topic, "a")])) == {Accepted}
    with rig.server.hung():
        outcomes = await published(broker, [Message.new(topic, "b"), Message.new(topic, "c")], 0.3)
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == [Reason.TIMEOUT] * 2
    assert kinds(await published(broker, [Message.new(topic, "d")])) == {Accepted}


async def test_R_5_a_server_that_never_says_anything_burns_no_attempt(rig: Rig, topic: str) -> None:
    """Nor does waiting for each other take a batch beyond its time."""
    if not rig.greets:
        return
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        broker = rig.broker(rig.url(port=deaf.getsockname()[1]))
        started = time.monotonic()
        outcomes = await asyncio.gather(*(published(broker, [Message.new(topic, "a")], 0.5) for _ in range(4)))
        seconds = time.monotonic() - started
        await broker.close()
    assert [kinds(batch) for batch in outcomes] == [{Unreached}] * 4
    assert seconds < 0.5 + GRACE


async def test_a_publish_that_is_cancelled_leaves_the_broker_usable(rig: Rig, broker: Broker, topic: str) -> None:
    await rig.declare(topic)
    assert kinds(await published(broker, [Message.new(topic, "first")])) == {Accepted}
    for pause in (0, 0, 0.001, 0.005):
        task = asyncio.create_task(published(broker, [Message.new(topic, {"n": n}) for n in range(50)]))
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.wait([task])
    last = [Message.new(topic, {"last": n}) for n in range(50)]
    assert kinds(await published(broker, last)) == {Accepted}
    assert {str(message.id) for message in last} <= {event.id for event in await rig.received(topic)}


async def test_closing_leaves_no_task_and_no_connection(rig: Rig, topic: str) -> None:
    await rig.declare(topic)
    tasks, connections = asyncio.all_tasks(), rig.connections()
    broker = rig.broker(rig.url())
    await broker.close()
    broker = rig.broker(rig.url())
    assert kinds(await published(broker, [Message.new(topic, "a")])) == {Accepted}
    assert rig.connections() > connections
    await broker.close()
    await broker.close()
    assert asyncio.all_tasks() <= tasks
    assert rig.connections() == connections
