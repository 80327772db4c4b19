"""What servers, networks and processes do to a source: nothing is lost, and it finds back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroom.errors import BrokerUnavailable
from tests.contract.sources.receiving import GLANCE, acknowledge, consume, ids, patiently, receive, until_unavailable
from tests.contract.sources.source_rigs import KafkaSourceRig, RedisSourceRig, ServerSourceRig
from tests.services.ports import free_port

if TYPE_CHECKING:
    from postroom.sources.port import Received, Source
    from tests.contract.sources.receiving import Counter

PROGRAM = Path(__file__).with_name("receiver_program.py")


async def test_what_is_out_when_the_connection_breaks_comes_again(
    server_rig: ServerSourceRig, server_counter: Counter
) -> None:
    if isinstance(server_rig, KafkaSourceRig):
        pytest.skip("the client connects again by itself, and is still a member: nothing is lost with the connection")
    sent = await server_counter.publish(range(6))
    source = server_counter.source(**server_rig.hasty)
    received = await receive(source, 6)
    server_rig.cut()
    await until_unavailable(source)
    await acknowledge(source, received[:2])  # in vain or not, it is no error
    again = await consume(source, set(sent[2:]))
    assert set(ids(again)) <= set(sent)


async def test_a_server_that_is_killed_is_found_again_and_nothing_is_lost(
    server_rig: ServerSourceRig, server_counter: Counter
) -> None:
    sent = set(await server_counter.publish(range(200)))
    source = server_counter.source(**server_rig.hasty)
    seen: set[str] = set()
    some = await receive(source, 50)
    await source.acknowledge(some)
    seen |= set(ids(some))
    out = await receive(source, 20)
    server_rig.rig.server.stop(kill=True)
    try:
        seen |= set(ids(await until_unavailable(source)))
        await acknowledge(source, out)
    finally:
        await server_rig.rig.restart()
    sent |= set(await server_counter.publish(range(200, 300)))
    seen |= set(ids(await consume(source, sent - seen - set(ids(out)))))
    await source.close()
    rest = sent - seen
    seen |= set(ids(await consume(server_counter.source(**server_rig.hasty), rest & set(ids(out)) - seen)))
    assert sent - seen <= set(ids(out)), "only what was acknowledged in the outage may not come again"


async def test_what_a_killed_process_had_comes_again_elsewhere(
    server_rig: ServerSourceRig, server_counter: Counter
) -> None:
    sent = await server_counter.publish(range(5))
    topic = server_counter.topic
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, server_rig.url(None, **server_rig.hasty), f"c{topic}", topic, "5"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    async with asyncio.timeout(30):
        theirs = [(await program.stdout.readline()).decode().strip() for _ in range(5)]
    assert sorted(theirs) == sorted(sent)
    program.send_signal(signal.SIGKILL)
    await program.wait()
    assert sorted(set(ids(await consume(server_counter.source(**server_rig.hasty), set(sent))))) == sorted(sent)


async def test_long_handling_does_not_lead_to_redelivery(server_rig: ServerSourceRig, server_counter: Counter) -> None:
    first, second = server_counter.source(**server_rig.hasty), server_counter.source(**server_rig.hasty)
    await server_rig.settled(first, second)
    sent = await server_counter.publish(range(20))
    theirs: dict[Source, list[Received]] = {first: [], second: []}
    async with asyncio.timeout(20):
        while sum(map(len, theirs.values())) < 20:
            for source, received in theirs.items():
                received.extend(await source.receive(5, GLANCE))
    for _ in range(5):  # two seconds: four times as long as the server waits for a sign
        assert [await source.receive(10, GLANCE) for source in theirs] == [[], []]
    for source, received in theirs.items():
        await source.acknowledge(received)
    assert sorted(ids([*theirs[first], *theirs[second]])) == sorted(sent)


async def test_a_busy_source_stays_in_its_group(server_rig: ServerSourceRig, server_counter: Counter) -> None:
    if not isinstance(server_rig, KafkaSourceRig):
        pytest.skip("no group that evicts")
    sent = await server_counter.publish(range(300))
    source = server_counter.source()
    received = await receive(source, 10, most=10)
    await asyncio.sleep(2.0)  # busy, and so long that it is told apart from one that is dead
    await source.acknowledge(received)
    rest = await consume(source, set(sent) - set(ids(received)))
    assert sorted(ids(received) + ids(rest)) == sorted(sent)


async def test_plain_messages_and_those_that_only_claim_to_be_events(
    server_rig: ServerSourceRig, server_counter: Counter
) -> None:
    topic, prefix = server_counter.topic, "ce_" if isinstance(server_rig, RedisSourceRig | KafkaSourceRig) else "ce-"
    await server_rig.send_plain(topic, b'{"n": 1}', {"content-type": "application/json", "city": "Ulm"})
    await server_rig.send_plain(topic, b"x", {f"{prefix}specversion": "1.0", f"{prefix}id": "7"})
    await server_rig.send_plain(topic, b"{", {"content-type": "application/cloudevents+json"})
    received = [one.message for one in await receive(server_counter.source(), 3)]
    [plain] = [one for one in received if one.problem is None]
    assert (plain.topic, plain.json(), plain.content_type) == (topic, {"n": 1}, "application/json")
    assert (dict(plain.headers), plain.type) == ({"city": "Ulm"}, None)
    assert len({one.id for one in received}) == 3
    binary, structured = sorted((one for one in received if one.problem), key=lambda one: one.id != "7")
    assert (binary.id, binary.payload, structured.payload) == ("7", b"x", b"{")
    assert "has no source, type" in str(binary.problem)
    assert "structured" in str(structured.problem)


async def test_a_server_that_is_not_there_is_named_without_secrets(server_rig: ServerSourceRig, topic: str) -> None:
    url = server_rig.url(port=free_port()).replace("://", "://shop:hidden@")
    source = server_rig.source_kind(url, "c", [topic])
    with pytest.raises(BrokerUnavailable, match=server_rig.name[:4].replace("rabb", "amqp")) as caught:
        await source.receive(1, GLANCE)
    assert "hidden" not in str(caught.value)
    await source.close()


async def test_what_is_not_set_up_is_said_and_found_when_it_is(server_rig: ServerSourceRig, topic: str) -> None:
    if isinstance(server_rig, RedisSourceRig):
        pytest.skip("a group makes its stream")
    source = server_rig.source(f"c{topic}", topic)
    with pytest.raises(BrokerUnavailable, match=topic):
        await source.receive(1, GLANCE)
    await server_rig.declare(topic)
    assert await source.receive(1, GLANCE) == []
    await source.close()


async def test_one_that_is_cancelled_while_messages_come_loses_nothing(
    server_rig: ServerSourceRig, server_counter: Counter
) -> None:
    source = server_counter.source(**server_rig.hasty)
    assert await patiently(source, 10) == []
    sending = asyncio.create_task(server_counter.publish(range(50)))
    seen: set[str] = set()
    while not sending.done():
        waiting = asyncio.create_task(source.receive(10, 20.0))
        await asyncio.wait([waiting, sending], timeout=0.002)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            received = await waiting
            await source.acknowledge(received)
            seen |= set(ids(received))
    await consume(source, set(await sending) - seen)


async def test_closing_leaves_no_task_and_no_connection(server_rig: ServerSourceRig, server_counter: Counter) -> None:
    [sent] = await server_counter.publish([1])
    tasks, connections = asyncio.all_tasks(), server_rig.rig.connections()
    source = server_counter.source()
    await source.close()
    source = server_counter.source()
    assert ids(await receive(source, 1)) == [sent]
    assert server_rig.rig.connections() > connections
    await source.close()
    await source.close()
    assert asyncio.all_tasks() <= tasks
    assert server_rig.rig.connections() == connections
