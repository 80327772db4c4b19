"""The office: what a consumer's parts share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.consumer.parked_keys import ParkedKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.consumer.handlers import Handler
    from postroom.consumer.running import Runner
    from postroom.incoming import Incoming
    from postroom.rules.failures import Classifier
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.parking import Parking
    from postroom.telemetry.events import Hook


@dataclass(slots=True, eq=False)
class Office:
    """One consumer's state, on one event loop."""

    name: str
    handlers: Sequence[Handler]
    batch: int
    classifier: Classifier
    hook: Hook
    runner: Runner
    line: ReconnectingConnection
    parking: Parking
    wake: Callable[[], None]
    """Says to the relay of parked messages that there is one."""
    parked_keys: ParkedKeys = field(default_factory=ParkedKeys)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    is_patient: bool = True
    """Whether to wait for calls of handlers that hang, and not to stop for them."""

    def handler_for(self, message: Incoming) -> Handler | None:
        """The first handler that the message fits."""
        return next((handler for handler in self.handlers if handler.fits(message)), None)

    def lose_patience(self) -> None:
        """Stop, where nothing can be handled any more because calls hang, and that is not to be waited for."""
        if not self.is_patient and self.runner.hangs_for_good:
            self.stopping.set()

    async def stops_within(self, seconds: float) -> bool:
        """Wait so long; returns at once when the consumer stops, and whether it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        return self.stopping.is_set()
