"""The real relay as a process of its own, which stops or dies, on demand, at a named point.

The points are made here, around the relay's calls and in its broker; the relay knows nothing of them.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import msgspec

from postroom.relay import Relay
from postroom.store.outbox import workers
from postroom.store.outbox.claims import RowClaims
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.settlements import SettlementWriter
from postroom.telemetry.events import Event, Reachability
from tests.crash.places import Line, Told, append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom import Message
    from postroom.store.outbox.leases import Claim, Settlement
    from postroom.store.outbox.settlements import Written
    from postroom.store.sql.steps import Steps
    from tests.crash.places import Places

T = TypeVar("T")

QUICK = {"lock_lease_sec": 1, "lane_lease_sec": 1, "poll_interval_sec": 0.05, "batch": 100, "backoff_sec": [0.1]}
"""Settings under which a test need not wait long."""
SILENT = 1.5
"""Seconds after which the others count a relay out, instead of seven: with short leases it beats often."""
SOME = 5
"""Messages of a batch after which a relay stops in the middle of it."""
POLL = 0.01


class Point(StrEnum):
    """Where a relay can be stopped."""

    CLAIMED = "after the claim"
    PUBLISHING = "in the middle of publishing"
    PUBLISHED = "between publishing and the settle"
    SETTLING = "in the settle, before it commits"
    SETTLED = "after the settle has committed, before the relay knows"


@dataclass
class Fate:
    """What a relay does to itself, once, where it reaches a point with messages that have a key, or have none."""

    number: signal.Signals
    point: Point
    keyed: bool
    _met: bool = field(default=False, init=False)

    def meet(self, point: Point, messages: Sequence[Message]) -> None:
        """Here is the point, with these messages."""
        if point is self.point and not self._met and any((one.key is not None) is self.keyed for one in messages):
            self._met = True
            signal.raise_signal(self.number)  # to this thread, which so does not run on for a moment

    def arrange(self) -> Iterator[Any]:
        """Patches by which the relay meets its fate."""
        if self.point is Point.CLAIMED:
            for owner, name in ((RowClaims, "claim"), (Lanes, "read")):
                yield patch.object(owner, name, _claiming(self, getattr(owner, name)))
        else:
            yield patch.object(SettlementWriter, "write", _settling(self, SettlementWriter.write))


def _claiming(fate: Fate, original: Callable[..., Steps[Claim]]) -> Callable[..., Steps[Claim]]:
    def claim(self: RowClaims, *args: Any, **options: Any) -> Steps[Claim]:
        claimed = yield from original(self, *args, **options)
        fate.meet(Point.CLAIMED, [one.message for one in claimed.messages])
        return claimed

    return claim


def _settling(fate: Fate, original: Callable[..., Steps[Written]]) -> Callable[..., Steps[Written]]:
    def write(self: SettlementWriter, settlements: Sequence[Settlement]) -> Steps[Written]:
        messages = [one.claimed.message for one in settlements if isinstance(one, Sent)]
        steps = original(self, settlements)
        fate.meet(Point.PUBLISHED, messages)
        if fate.point is Point.SETTLING and settlements:
            if self.sql.names.dialect == "postgresql":  # where it is one statement, which commits by itself
                steps = self.sql.transaction(partial(original, self), settlements)
            steps = _before_commit(steps, lambda: fate.meet(Point.SETTLING, messages))
        written = yield from steps
        fate.meet(Point.SETTLED, messages)
        return written

    return write


def _before_commit(steps: Steps[T], act: Callable[[], None]) -> Steps[T]:
    query = next(steps)
    while True:
        if query.text == "COMMIT":
            act()
        try:
            query = steps.send((yield query))
        except StopIteration as end:
            result: T = end.value
            return result


class FileBroker:
    """A function for the relay: appends a line for each message. The test's files say when it is down or stuck."""

    def __init__(self, name: str, places: Places, fate: Fate | None) -> None:
        self._name = name
        self._places = places
        self._fate = fate
        self._sent = 0
        self._counting = threading.Lock()

    def __call__(self, message: Message) -> None:
        if self._places.down.exists():
            raise ConnectionRefusedError("nobody listens")
        assert message.position is not None
        line = Line(str(message.id), message.key, message.position, self._name)
        append(self._places.broker, msgspec.json.encode(line))
        while self._places.stuck.exists():
            time.sleep(POLL)
        if self._fate is not None:
            self._meet(message, self._fate)

    def _meet(self, message: Message, fate: Fate) -> None:
        with self._counting:
            self._sent += (message.key is not None) is fate.keyed
            if self._sent >= SOME:
                fate.meet(Point.PUBLISHING, [message])


def relay(name: str, url: str, places: Places, fate: Fate | None = None, **settings: Any) -> None:
    """Deliver until SIGTERM."""

    def listen(event: Event) -> None:
        if isinstance(event, Reachability):
            append(places.told(name), msgspec.json.encode(Told(event.what, event.reachable)))

    one = Relay(url, FileBroker(name, places, fate), worker=name, hook=listen, **{**QUICK, **settings})
    with ExitStack() as patches:
        patches.enter_context(patch.object(workers, "ALIVE_SECONDS", SILENT))
        for patched in fate.arrange() if fate else ():
            patches.enter_context(patched)
        asyncio.run(_run(one))


async def _run(one: Relay) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, one.stop)
    await one.run()
