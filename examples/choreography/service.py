"""A service: its tables, handlers for the other services' events, and a relay for its own."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

from examples.shutdown import call
from postroom import Consumer, Relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from examples.choreography.events import Event
    from postroom.brokers.memory import MemoryBroker

FAST: dict[str, Any] = {"poll_interval_sec": 0.05, "lane_lease_sec": 2, "lock_lease_sec": 2}
"""To make the example quick; the defaults suit a real service."""


@dataclass(frozen=True)
class Service:
    """One service. It knows the others only by their events, and has a database of its own."""

    name: str
    tables: Sequence[str]
    handlers: Mapping[type[Event], Callable[..., None]]

    def set_up(self, database: str) -> None:
        """Create Postroom's tables and the service's own."""
        call([sys.executable, "-m", "postroom", "init", "--database", database])
        engine = create_engine(database)
        with engine.begin() as connection:
            for statement in self.tables:
                connection.execute(text(statement))
        engine.dispose()

    @asynccontextmanager
    async def at_work(self, database: str, broker: str | MemoryBroker) -> AsyncIterator[None]:
        """Handle the other services' events and send its own, for the duration of the block.

        Relay and consumer keep their names across restarts, so that they need not wait for their own old leases.
        """
        consumer = Consumer(self.name, broker, database=database, worker=f"{self.name}-consumer", **FAST)
        for event, handle in self.handlers.items():
            consumer.handler(event.topic, attempts=10, delays=[0.2, 0.5, 1])(handle)
        relay = Relay(database, broker, worker=f"{self.name}-relay", **FAST)
        async with relay, consumer:
            yield


async def main(name: str, database: str, broker: str) -> None:
    """Run this service until SIGTERM or Ctrl-C."""
    service: Service = importlib.import_module(f"examples.choreography.{name}").SERVICE
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with service.at_work(database, broker):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
