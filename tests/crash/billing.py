"""A service that bills what a broker brings, as a test sees it: its bills, and what its processes say."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from postroom import Message
from tests.contract.schema_support import engine_for, execute
from tests.crash.consumer_worker import Call, Fated, Order, consume
from tests.crash.places import Places
from tests.crash.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.contract.sources.source_rigs import ServerSourceRig
    from tests.crash.consumer_worker import Fate
    from tests.crash.processes import Processes, Worker

TABLE = "CREATE TABLE bill (place {identity}, number INTEGER, ordering_key VARCHAR(80), worker VARCHAR(80))"
IDENTITY = {
    "sqlite": "INTEGER PRIMARY KEY",
    "postgresql": "INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
}


class Bill(msgspec.Struct, frozen=True):
    """The effect of a message."""

    number: int
    key: str | None
    worker: str


@dataclass(frozen=True)
class Rooms:
    """What the processes of a service share: where messages come from, its database, and files of the test."""

    directory: Path
    broker: str
    topic: str
    database: str

    @property
    def calls(self) -> Path:
        """A line for each call of the handler."""
        return self.directory / "calls"

    @property
    def fates(self) -> Path:
        """A line for each message that a consumer is done with."""
        return self.directory / "fates"

    def told(self, name: str) -> Path:
        """What a consumer said of reachability."""
        return Places(self.directory).told(name)

    def calls_of(self, number: int) -> int:
        """How often the handler was called with this message."""
        return sum(call.number == number for call in self.all_calls())

    def all_calls(self) -> list[Call]:
        return [msgspec.json.decode(line, type=Call) for line in lines(self.calls)]

    def all_fates(self) -> list[Fated]:
        return [msgspec.json.decode(line, type=Fated) for line in lines(self.fates)]


class Billing:
    """The service: processes that write a bill for each order that comes."""

    def __init__(self, source_rig: ServerSourceRig, database: str, processes: Processes, *, hasty: bool = True) -> None:
        """Hasty: what a dead process had comes again soon, also where a process is only slow."""
        self.source_rig = source_rig
        self.shop = Shop(database)
        topic = f"t{uuid4().hex}"
        self.rooms = Rooms(
            processes.directory, source_rig.url(None, **(source_rig.hasty if hasty else {})), topic, database
        )
        self._processes = processes
        with engine_for(database) as engine:
            execute(engine, TABLE.format(identity=IDENTITY[engine.dialect.name]))
        asyncio.run(source_rig.declare(topic))

    def close(self) -> None:
        self.shop.close()

    def start(self, name: str, fate: Fate | None = None) -> Worker:
        """Start a process of the service."""
        return self._processes.start(name, consume, self.rooms, fate)

    def publish(self, *messages: Message) -> None:
        """Give messages to the broker."""
        asyncio.run(self._publish(messages))

    async def _publish(self, messages: Iterable[Message]) -> None:
        broker = self.source_rig.broker()
        try:
            for outcome in await broker.publish(list(messages), 10):
                assert type(outcome).__name__ == "Accepted", outcome
        finally:
            await broker.close()

    def order(self, number: int, key: str | None = None, failures: int = 0) -> Message:
        """A message of this topic."""
        return Message.new(self.rooms.topic, Order(number, failures), key=key)

    def bills(self) -> list[Bill]:
        """The effects, in the order in which they were written."""
        return [Bill(*row) for row in self.shop.select("SELECT number, ordering_key, worker FROM bill ORDER BY place")]

    def billed(self) -> Counter[int]:
        """How many bills there are for each order."""
        return Counter(bill.number for bill in self.bills())

    def count(self) -> int:
        return int(self.shop.select("SELECT count(*) FROM bill")[0][0])

    def said(self, fate: str, number: int, worker: str | None = None) -> bool:
        """Whether a consumer said this of the message."""
        return any(
            (one.fate, one.number) == (fate, number) and worker in {None, one.worker} for one in self.rooms.all_fates()
        )

    def waits_for_a_lock(self) -> bool:
        """Whether a statement waits for another transaction to end; on PostgreSQL."""
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(self.shop.select(waiting))

    def parked(self) -> int:
        """How many messages were ever parked."""
        return int(self.shop.select("SELECT count(*) FROM {outbox}")[0][0])


def lines(path: Path) -> list[bytes]:
    """The lines that are there, whole."""
    return path.read_bytes().splitlines() if path.exists() else []


def out_of_order(bills: Iterable[Bill]) -> list[Bill]:
    """Bills of a key whose number is lower than that of one before."""
    highest: dict[str | None, int] = {}
    found = []
    for bill in bills:
        if bill.key is not None and bill.number < highest.get(bill.key, bill.number):
            found.append(bill)
        highest[bill.key] = max(bill.number, highest.get(bill.key, bill.number))
    return found
