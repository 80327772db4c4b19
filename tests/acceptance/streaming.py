"""A service whose outbox is in the stream, relays that read it, and a broker with moods."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from postroom import Message, Outbox, Relay
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome, Refused, Unreached
from postroom.telemetry.events import Event, StreamChanged
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

QUICK: dict[str, Any] = {"poll_interval_sec": 0.02, "lane_lease_sec": 2, "lock_lease_sec": 5, "backoff_sec": [0.05]}


class Streaming(Service):
    """A service whose outbox writes to the stream."""

    outbox = Outbox(cdc=True)

    def add(self, *messages: Message) -> list[Message]:
        with self.engine.begin() as connection:
            return self.outbox.add_many(connection, messages)

    def count(self, table: str, where: str = "true") -> int:
        return int(str(self.rows(f"SELECT count(*) FROM {self.table(table)} WHERE {where}")[0][0]))

    def mode(self) -> str:
        return str(self.rows(f"SELECT mode FROM {self.table('stream')}")[0][0])

    def reader(self) -> str:
        return str(self.rows(f"SELECT owner FROM {self.table('stream')}")[0][0])

    def stream_takes(self) -> int:
        """How often the row of the stream was written."""
        return int(
            str(
                self.rows(f"SELECT n_tup_upd FROM pg_stat_all_tables WHERE relid = '{self.table('stream')}'::regclass")[
                    0
                ][0]
            )
        )

    def is_settled(self, messages: int) -> bool:
        return self.count("receipt") == messages and not self.count("delivery")


@asynccontextmanager
async def running(service: Streaming, broker: Any, **settings: Any) -> AsyncIterator[Relay]:
    """A relay that reads the stream."""
    relay = Relay(service.url, broker, cdc=True, **{**QUICK, **settings})
    async with relay:
        await wait_for(lambda: service.mode() == "stream" and service.reader() == relay.worker)
        yield relay


def numbered(count: int, start: int = 0, keys: int = 7) -> list[Message]:
    return [Message.new("t", n, key=f"k{n % keys}" if n % 3 else None) for n in range(start, start + count)]


def by_key(messages: Sequence[Message]) -> dict[str, list[int]]:
    """The numbers of each key in the order in which they first came."""
    found: dict[str, dict[int, None]] = defaultdict(dict)
    for message in messages:
        if message.key is not None:
            found[message.key].setdefault(message.json())
    return {key: list(numbers) for key, numbers in found.items()}


class Moody:
    """A broker that refuses at random, has outages, and keeps no order itself."""

    name = "moody"

    def __init__(self, seed: int, *, ordered_prefix: bool = False) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.capabilities = Capabilities(ordered_prefix=ordered_prefix)
        self.messages: list[Message] = []
        self.down = False

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        await asyncio.sleep(0)
        outcomes: list[Outcome] = []
        failed: set[str | None] = set()
        for message in messages:
            if self.down:
                outcomes.append(Unreached("nobody is there"))
            elif self.capabilities.ordered_prefix and failed:
                outcomes.append(Refused("EARLIER", "one before it was refused"))
            elif message.key in failed or self._chance.random() < 0.1:
                failed.add(message.key)
                outcomes.append(Refused("NOPE", "not now"))
            else:
                self.messages.append(message)
                outcomes.append(ACCEPTED)
        return outcomes

    async def close(self) -> None:
        """Nothing to close."""


def noting(changes: list[str]) -> Callable[[Event], None]:
    """A hook that keeps what happened to the stream."""

    def note(event: Event) -> None:
        if isinstance(event, StreamChanged):
            changes.append(event.what)

    return note
