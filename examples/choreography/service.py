"""What a service is made of: tables, handlers for the others' events, and a relay for its own."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

from examples.ending import call
from postroom import Consumer, Relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from examples.choreography.events import Event
    from postroom.brokers.memory import MemoryBroker

HASTE: dict[str, Any] = {"poll_interval_sec": 0.05, "lane_lease_sec": 2, "lock_lease_sec": 2}
"""Only so that the example is quick: the defaults suit a real service."""


@dataclass(frozen=True)
class Service:
    """One service. It knows the others by their events only, and has a database of its own."""

    name: str
    tables: Sequence[str]
    handlers: Mapping[type[Event], Callable[..., None]]

    def set_up(self, database: str) -> None:
        """Make the tables, Postroom's and the service's own."""
        call([sys.executable, "-m", "postroom", "init", "--database", database])
        engine = create_engine(database)
        with engine.begin() as connection:
            for statement in self.tables:
                connection.execute(text(statement))
        engine.dispose()

    @asynccontextmanager
    async def at_work(self, database: str, broker: str | MemoryBroker) -> AsyncIterator[None]:
        """Handle the others' events, and send its own, as long as the block lasts.

        The two are called the same after a restart, so that they need not wait until they are believed dead.
        """
        consumer = Consumer(self.name, broker, database=database, worker=f"{self.name}-consumer", **HASTE)
        for event, handle in self.handlers.items():
            consumer.handler(event.topic, attempts=10, delays=[0.2, 0.5, 1])(handle)
        relay = Relay(database, broker, worker=f"{self.name}-relay", **HASTE)
        async with relay, consumer:
            yield


async def main(name: str, database: str, broker: str) -> None:
    """Be this service until SIGTERM or Ctrl-C."""
    service: Service = importlib.import_module(f"examples.choreography.{name}").SERVICE
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with service.at_work(database, broker):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
