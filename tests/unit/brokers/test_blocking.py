"""Clients that block: the loop goes on, time limits hold, and a client that hangs keeps only its own threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from postroom import Message
from postroom.brokers.blocking import LINES, THREADS, BlockingBroker
from postroom.brokers.port import ACCEPTED, NOT_SENT, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason
from tests.acceptance.waiting import wait_for


class Client(BlockingBroker):
    """Does what each payload says."""

    def __init__(self) -> None:
        super().__init__("client:test")
        self.free = threading.Event()
        self.meeting = threading.Barrier(LINES)
        self.opened = 0
        self.closed: list[int] = []
        self.broken: set[int] = set()
        self.sent: list[tuple[int, Message]] = []
        self.refuses = self.connects_slowly = False

    def connect(self, seconds: float) -> Any:
        del seconds
        if self.refuses:
            raise BrokerUnavailable("nobody is there")
        if self.connects_slowly:
            self.free.wait()
        self.opened += 1
        return self.opened

    def is_usable(self, line: Any) -> bool:
        return line not in self.broken

    def disconnect(self, line: Any) -> None:
        self.closed.append(line)

    def send(self, line: Any, message: Message, seconds: float) -> Outcome:
        del seconds
        self.sent.append((line, message))
        match message.json():
            case "hang":
                self.free.wait()
            case "lost":
                self.broken.add(line)
                return Unreached("lost")
            case "no place":
                self.broken.add(line)
                return TargetUnavailable("no place")
            case "meet":
                self.meeting.wait(10)
            case "late":
                self.broken.add(line)
                return Refused(Reason.TIMEOUT)
            case _:
                pass
        return ACCEPTED


def messages(*what: str) -> list[Message]:
    return [Message.new("topic", f'"{one}"') for one in what]


async def test_lines_are_kept_and_broken_ones_replaced() -> None:
    client = Client()
    assert await client.publish(messages("a", "b"), 5) == [ACCEPTED, ACCEPTED]
    assert await client.publish(messages("no place", "c"), 5) == [TargetUnavailable("no place"), ACCEPTED]
    assert client.opened == 2
    assert await client.publish(messages("a", "lost", "c"), 5) == [ACCEPTED, Unreached("lost"), Unreached("lost")]
    assert await client.publish(messages("late", "c"), 5) == [Refused(Reason.TIMEOUT), NOT_SENT]
    assert client.opened == 3
    assert await client.publish(messages("a"), 5) == [ACCEPTED]
    await client.close()
    assert client.closed == [1, 2, 3, 4]
    refusing = Client()
    refusing.refuses = True
    assert await refusing.publish(messages("a", "b"), 5) == [Unreached("nobody is there")] * 2
    await refusing.close()


async def test_a_large_batch_is_spread_over_lines_and_keys_stay_in_order() -> None:
    client = Client()
    batch = [Message.new("topic", '"meet"') for _ in range(LINES)]  # each on a line of its own, or they never meet
    batch += [Message.new("topic", f'"{number}"', key=f"key-{number % 7}") for number in range(100)]
    assert await client.publish(batch, 20) == [ACCEPTED] * len(batch)
    assert client.opened == LINES
    for key in {message.key for message in batch if message.key}:
        assert [one for _, one in client.sent if one.key == key] == [one for one in batch if one.key == key]
        assert len({line for line, one in client.sent if one.key == key}) == 1
    assert await client.publish(messages("no place", "a"), 5) == [TargetUnavailable("no place"), ACCEPTED]
    assert sorted(client.closed) == [*range(1, LINES + 1)]  # those that idle know as little of what has changed
    await client.close()
    assert client.closed[LINES:] == [LINES + 1]


async def test_after_one_line_is_lost_no_more_are_started_and_what_others_said_counts() -> None:
    client = Client()
    batch = messages(*["meet"] * (LINES - 1), "lost", *["a"] * 60)
    client.meeting = threading.Barrier(LINES - 1)
    outcomes = await client.publish(batch, 10)
    assert outcomes[: LINES - 1] == [ACCEPTED] * (LINES - 1)
    assert Unreached("lost") == outcomes[LINES - 1]
    assert {type(one) for one in outcomes} == {Accepted, Unreached}
    assert outcomes.count(ACCEPTED) + 1 == len(client.sent)
    await client.close()


async def test_a_publish_that_is_cancelled_sends_no_more() -> None:
    client = Client()
    publishing = asyncio.create_task(client.publish(messages("hang", "b", "c"), 10))
    await wait_for(lambda: client.sent)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    client.free.set()
    await wait_for(lambda: client._idle)
    assert len(client.sent) == 1
    await client.close()


async def test_a_client_that_hangs_keeps_its_threads_and_nothing_else() -> None:
    client = Client()
    for outcomes in await asyncio.gather(*(client.publish(messages("a", "hang", "b"), 2) for _ in range(THREADS))):
        assert outcomes[0] == ACCEPTED
        assert isinstance(outcomes[1], Refused)
        assert outcomes[1].code == Reason.TIMEOUT
        assert outcomes[2] == NOT_SENT
    with pytest.raises(BrokerUnavailable, match=f"client:test: all {THREADS} threads wait for it in vain"):
        await client.publish(messages("a"), 0.05)
    client.free.set()
    async with asyncio.timeout(10):
        assert await client.publish(messages("a"), 10) == [ACCEPTED]
    await client.close()


async def test_a_connection_that_takes_too_long_is_no_attempt() -> None:
    client = Client()
    client.connects_slowly = True
    outcomes = await client.publish(messages("a", "b"), 0.05)
    assert {type(one) for one in outcomes} == {Unreached}
    assert "could not be connected to within 0.05 s" in str(outcomes[0])
    client.free.set()
    await client.close()


async def test_while_others_are_busy_messages_wait_their_turn() -> None:
    client = Client()
    busy = [asyncio.create_task(client.publish(messages("hang"), 10)) for _ in range(THREADS)]
    await asyncio.sleep(0)
    assert await client.publish(messages("a"), 0.05) == [NOT_SENT]
    client.free.set()
    assert await asyncio.gather(*busy) == [[ACCEPTED]] * THREADS
    await client.close()
