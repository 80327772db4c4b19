"""Row claims: lease messages without a key, one by one, and hand them over in batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.delivery.attempt import Batch, Batches
from postroom.delivery.failed_keys import NO_READ
from postroom.store.outbox.leases import new_token
from postroom.store.sql.names import ROWS

if TYPE_CHECKING:
    from postroom.delivery.circuit import Circuit
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.signals import Signals
    from postroom.delivery.work_source import Collected, Handover
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.outbox.queue_store import QueueStore

HELP = "help"
"""Wakes the second claimer."""


class RowClaimer:
    """Claims messages without a key.

    A second one helps while there is more than one can claim: while this process decodes the messages of one claim,
    the database works on the other.
    """

    def __init__(  # noqa: PLR0913 - where to claim, and what to do with it
        self,
        *,
        queue: Queue,
        options: EngineOptions,
        store: QueueStore,
        connection: ReconnectingConnection,
        circuit: Circuit,
        signals: Signals,
        handover: Handover,
        batches: Batches,
        helps: bool = False,
    ) -> None:
        self.kind = HELP if helps else ROWS
        self.polls = not helps
        self._queue = queue
        self._options = options
        self._store = store
        self._connection = connection
        self._circuit = circuit
        self._signals = signals
        self._handover = handover
        self._batches = batches
        self._cursor = 0
        self.unresolved: list[int] = []
        """Tokens of claims whose answer never came, or whose messages were not handed over."""

    async def collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        """Claim messages and hand them over. Raises `Outage`."""
        await self._release_unresolved()
        sweep = self._signals.take_rows_behind() or sweep
        probing = self._circuit.down is not None
        if probing:
            self._signals.rows_behind()  # a probe passes by what stands before it
        after = self._circuit.probed if probing else 0 if sweep else self._cursor
        started = time.monotonic()
        token = new_token()
        self.unresolved.append(token)
        claim = await self._connection.attempt(
            self._store.rows.claim(
                self._options.worker,
                limit,
                self._options.lease,
                token=token,
                after=after,
                due=due and not (probing and after),
                most_bytes=self._queue.most_bytes,
            )
        )
        if probing and not claim.messages:
            self._circuit.probe_from_start()
        if claim.messages and not probing:
            self._cursor = max(claim.messages[-1].position, 0 if sweep else self._cursor)
        if claim.found >= limit > 1:
            self._signals.wake(HELP)
        deadline = started + self._options.lease
        collected = await self._handover.hand_over(claim, started, deadline, self._connection, self._dispatch)
        self.unresolved.remove(token)
        return collected

    def _dispatch(self, messages: list[Claimed]) -> None:
        self._batches.put_nowait(Batch(NO_READ, messages))

    async def _release_unresolved(self) -> None:
        for token in list(self.unresolved):
            await self._connection.attempt(self._store.recovery.forget(token))
            self.unresolved.remove(token)
