"""Row claims: lease messages without a key, one by one, and hand them over in batches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.delivery.attempt import Batch, Batches
from postroom.delivery.failed_keys import NO_READ
from postroom.store.outbox.leases import new_token
from postroom.store.sql.names import WAKE_ROWS

if TYPE_CHECKING:
    from postroom.delivery.circuit import Circuit
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.signals import Signals
    from postroom.delivery.suspects import Suspects
    from postroom.delivery.work_source import Collected, Handover
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.outbox.queue_store import QueueStore

HELP = "help"
"""Wakes the second claimer."""


@dataclass(slots=True, eq=False, kw_only=True)
class RowClaimer:
    """Claims messages without a key.

    A second one helps while there is more than one can claim: while this process decodes the messages of one claim,
    the database works on the other.
    """

    queue: Queue
    options: EngineOptions
    store: QueueStore
    connection: Connection
    circuit: Circuit
    signals: Signals
    handover: Handover
    suspects: Suspects
    batches: Batches
    suspected: Batches
    helps: bool = False
    _cursor: int = field(default=0, init=False)
    unresolved: list[int] = field(default_factory=list, init=False)
    """Tokens of claims whose answer never came, or whose messages were not handed over."""

    @property
    def kind(self) -> str:
        """Which wake-ups are for it."""
        return HELP if self.helps else WAKE_ROWS

    @property
    def polls(self) -> bool:
        """Whether it looks for work by itself."""
        return not self.helps

    async def collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        """Claim messages and hand them over. Raises `Outage`."""
        await self._release_unresolved()
        sweep = self.signals.take_rows_behind() or sweep
        due = self.signals.take_rows_due() or due
        probing = self.circuit.down is not None
        if probing:
            self.signals.rows_behind()  # a probe passes by what stands before it
        after = self.circuit.probed if probing else 0 if sweep else self._cursor
        started = time.monotonic()
        token = new_token()
        self.unresolved.append(token)
        claim = await self.connection.attempt(
            self.store.rows.claim(
                self.options.worker,
                limit,
                self.options.lease,
                token=token,
                after=after,
                due=due and not (probing and after),
                most_bytes=self.queue.most_bytes,
            )
        )
        if probing and not claim.messages:
            self.circuit.probe_from_start()
        if claim.messages and not probing:
            self._cursor = max(claim.messages[-1].position, 0 if sweep else self._cursor)
        if claim.found >= limit > 1:
            self.signals.wake(HELP)
        deadline = started + self.options.lease
        collected = await self.handover.hand_over(claim, started, deadline, self.connection, self._dispatch)
        self.unresolved.remove(token)
        return collected

    def _dispatch(self, messages: list[Claimed]) -> None:
        """Suspects take a call for each few of them: the others do not wait in line behind them."""
        innocent, suspected = self.suspects.divide(messages)
        for line, some in ((self.batches, innocent), (self.suspected, suspected)):
            if some:
                line.put_nowait(Batch(NO_READ, some))

    async def _release_unresolved(self) -> None:
        for token in list(self.unresolved):
            await self.connection.attempt(self.store.recovery.forget(token))
            self.unresolved.remove(token)
