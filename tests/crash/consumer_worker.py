"""The real consumer as a process of its own, which dies, on demand, at a named point; and a relay to a real broker.

The points are met in the handler and in the hook; the consumer knows nothing of them.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from sqlalchemy import Connection, text

from postroom import Consumer, Relay
from postroom.store.outbox import workers
from postroom.telemetry.events import Event, Handled, Reachability
from tests.crash.places import Told, append
from tests.crash.relay_worker import QUICK, SILENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.incoming import Incoming
    from tests.crash import relay_worker
    from tests.crash.billing import Rooms

CONSUMER = "billing"
INSERT = text("INSERT INTO bill (number, ordering_key, worker) VALUES (:number, :key, :worker)")


class Order(msgspec.Struct, frozen=True):
    """What the messages say."""

    number: int
    failures: int = 0
    """So many of the handler's first calls fail, in whichever process."""


class Point(StrEnum):
    """Where a consumer can die."""

    HANDLING = "in the handler, before its transaction commits"
    HANDLED = "after the handler's commit, before it is acknowledged"
    PARKED = "after the message is parked, before it is acknowledged"


AFTER = {"handled": Point.HANDLED, "parked": Point.PARKED}
"""The points that are reached when a consumer says so."""


@dataclass(frozen=True)
class Fate:
    """A consumer dies, or is paused, where it reaches the point with the message of this number."""

    point: Point
    number: int
    signal: signal.Signals = signal.SIGKILL

    def meet(self, point: Point, number: int) -> None:
        """Here is the point, with this message."""
        if (point, number) == (self.point, self.number):
            signal.raise_signal(self.signal)


class Fated(msgspec.Struct, frozen=True, array_like=True):
    """What a consumer said of a message."""

    worker: str
    fate: str
    number: int


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call of a handler, whatever became of it."""

    worker: str
    number: int


def consume(name: str, rooms: Rooms, fate: Fate | None = None, **settings: Any) -> None:
    """Handle what comes until SIGTERM: write a bill for each order."""

    def meet(point: Point, number: int) -> None:
        if fate is not None:
            fate.meet(point, number)

    def bill(connection: Connection, message: Incoming) -> None:
        order = message.decode(Order)
        append(rooms.calls, msgspec.json.encode(Call(name, order.number)))
        connection.execute(INSERT, {"number": order.number, "key": message.key, "worker": name})
        if order.failures and rooms.calls_of(order.number) <= order.failures:
            raise RuntimeError("not now")
        meet(Point.HANDLING, order.number)

    def listen(event: Event) -> None:
        match event:
            case Handled(fate=what):
                numbers = [one.decode(Order).number for one in event.messages]
                append(rooms.fates, *(msgspec.json.encode(Fated(name, what, number)) for number in numbers))
                for number in numbers:
                    if what in AFTER:
                        meet(AFTER[what], number)
            case Reachability():
                append(rooms.told(name), msgspec.json.encode(Told(event.what, event.reachable)))
            case _:
                pass

    quick = {name: value for name, value in QUICK.items() if name != "backoff_sec"}
    consumer = Consumer(
        CONSUMER, rooms.broker, database=rooms.database, hook=listen, worker=name, **{**quick, **settings}
    )
    consumer.handler(rooms.topic, attempts=5, delays=[0.1])(bill)
    with patch.object(workers, "ALIVE_SECONDS", SILENT):
        asyncio.run(_run(consumer.run, consumer.stop))


def send(name: str, url: str, broker: str, fate: relay_worker.Fate | None = None) -> None:
    """Deliver what is in the outbox to the broker, until SIGTERM."""
    settings: dict[str, Any] = QUICK
    relay = Relay(url, broker, worker=name, **settings)
    with ExitStack() as patches:
        patches.enter_context(patch.object(workers, "ALIVE_SECONDS", SILENT))
        for patched in fate.arrange() if fate else ():
            patches.enter_context(patched)
        asyncio.run(_run(relay.run, relay.stop))


async def _run(run: Callable[[], Any], stop: Callable[[], None]) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, partial(stop))
    await run()
