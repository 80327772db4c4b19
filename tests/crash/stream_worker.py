"""A relay that reads the stream, as a process of its own, which stops or dies, on demand, at a named point.

The points are made here, around the relay's calls and in its broker; the relay knows nothing of them.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from postroom.delivery.stream.term import Term
from postroom.relay import Relay
from postroom.store.connections.replication import ReplicationConnection
from postroom.store.outbox import workers
from postroom.store.stream.records import StreamRecords
from postroom.telemetry.events import Event, StreamChanged
from tests.crash.places import append
from tests.crash.relay_worker import QUICK, SILENT, SOME, FileBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom import Message
    from postroom.rules.stream.stream_rows import StreamRow
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.log_messages import UnsentOfLog
    from postroom.store.stream.records import NewDelivery, NewReceipts
    from tests.crash.places import Places


class StreamPoint(StrEnum):
    """Where a relay can be stopped."""

    RECEIVED = "after messages were received"
    PUBLISHING = "in the middle of publishing"
    PUBLISHED = "between publishing and the record"
    RECORDED = "after the record has committed, before the relay knows"
    CONFIRMING = "before the place is confirmed"
    CONFIRMED = "after the place was confirmed"


@dataclass
class StreamFate:
    """What a relay does to itself, once, where it reaches a point."""

    number: signal.Signals
    point: StreamPoint
    _met: bool = field(default=False, init=False)
    _sent: int = field(default=0, init=False)

    def meet(self, point: StreamPoint) -> None:
        """Here is the point."""
        if point is self.point and not self._met:
            self._met = True
            signal.raise_signal(self.number)

    def arrange(self) -> Iterator[Any]:
        """Patches by which the relay meets its fate."""
        yield patch.object(Term, "_hand_over", self._handing_over(Term._hand_over))
        yield patch.object(StreamRecords, "record", self._recording(StreamRecords.record))
        yield patch.object(ReplicationConnection, "send", self._confirming(ReplicationConnection.send))

    def publish(self, broker: FileBroker) -> Callable[[Message], None]:
        """The broker, in which the relay meets its fate when it has some."""

        def publish(message: Message) -> None:
            broker(message)
            self._sent += 1
            if self._sent >= SOME:
                self.meet(StreamPoint.PUBLISHING)

        return publish

    def _handing_over(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def hand_over(term: Term, rows: Sequence[StreamRow]) -> None:
            self.meet(StreamPoint.RECEIVED)
            await original(term, rows)

        return hand_over

    def _recording(self, original: Callable[..., Steps[bool]]) -> Callable[..., Steps[bool]]:
        def record(
            records: StreamRecords,
            token: int,
            receipts: NewReceipts,
            deliveries: Sequence[NewDelivery],
            unsent: Sequence[UnsentOfLog] = (),
        ) -> Steps[bool]:
            if receipts.positions:
                self.meet(StreamPoint.PUBLISHED)
            is_ours = yield from original(records, token, receipts, deliveries, unsent)
            if receipts.positions:
                self.meet(StreamPoint.RECORDED)
            return is_ours

        return record

    def _confirming(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def send(connection: ReplicationConnection, data: bytes) -> None:
            if self._sent:
                self.meet(StreamPoint.CONFIRMING)
            await original(connection, data)
            if self._sent:
                self.meet(StreamPoint.CONFIRMED)

        return send


def stream_relay(name: str, url: str, places: Places, fate: StreamFate | None = None, **settings: Any) -> None:
    """Deliver until SIGTERM."""

    def listen(event: Event) -> None:
        if isinstance(event, StreamChanged):
            append(places.told(name), msgspec.json.encode((event.what, event.detail)))

    broker = FileBroker(name, places, None)
    function = fate.publish(broker) if fate else broker
    one = Relay(url, function, worker=name, hook=listen, cdc=True, **{**QUICK, **settings})
    with ExitStack() as patches:
        patches.enter_context(patch.object(workers, "ALIVE_SECONDS", SILENT))
        for patched in fate.arrange() if fate else ():
            patches.enter_context(patched)
        asyncio.run(_run(one))


def dying_relay(name: str, url: str, places: Places) -> None:
    """Deliver until a message comes that kills whoever sends it."""

    def publish(message: Message) -> None:
        if message.topic == "deadly":
            signal.raise_signal(signal.SIGKILL)
        broker(message)

    broker = FileBroker(name, places, None)
    settings: dict[str, Any] = {**QUICK}
    asyncio.run(_run(Relay(url, publish, worker=name, cdc=True, **settings)))


async def _run(one: Relay) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, one.stop)
    await one.run()
