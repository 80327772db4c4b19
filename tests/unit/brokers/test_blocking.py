"""Clients that block: the loop goes on, time limits hold, and a client that hangs keeps only its own threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from postroom import Message
from postroom.brokers.blocking import THREADS, BlockingBroker
from postroom.brokers.port import ACCEPTED, NOT_SENT, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason


class Client(BlockingBroker):
    """Does what each payload says."""

    def __init__(self) -> None:
        super().__init__("client:test")
        self.free = threading.Event()
        self.opened = 0
        self.closed: list[int] = []
        self.broken: set[int] = set()
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
        match message.json():
            case "hang":
                self.free.wait()
            case "lost":
                self.broken.add(line)
                return Unreached("lost")
            case "no place":
                self.broken.add(line)
                return TargetUnavailable("no place")
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
