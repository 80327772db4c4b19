"""Recording under one lease: writes by its token on the connection it began with, and keeps how far all is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.rules.stream.progress import Progress
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.sql.steps import Steps
    from postroom.store.stream.log_messages import UnsentOfLog
    from postroom.store.stream.records import NewDelivery, NewReceipts, StreamRecords


TAKEN = "another relay reads the stream"


class TermEnded(Outage):
    """The lease on the stream was lost, or the connection: nothing more can be recorded under it."""


class Recording:
    """What all queues of a term record, together.

    After a failover the same position may be another message's, and the lease may be there still. So a term writes on
    the connection that it began with, and ends with it.
    """

    def __init__(
        self,
        records: StreamRecords,
        connection: ReconnectingConnection,
        token: int,
        progress: Progress,
        advanced: Callable[[], None],
    ) -> None:
        self._records = records
        self.connection = connection
        self._number = connection.connections
        self._token = token
        self.progress = progress
        self._advanced = advanced
        self.ended = False

    async def write(
        self,
        receipts: NewReceipts,
        deliveries: Sequence[NewDelivery],
        of_batches: Mapping[int, int],
        unsent: Sequence[UnsentOfLog] = (),
    ) -> None:
        """Record what became of messages, and note it. Raises `TermEnded`."""
        if self.ended:
            raise TermEnded("the lease on the stream was given up")
        if receipts.positions or deliveries or unsent:  # else they were in the log alone, and nothing is to be written
            await self._write(self._records.record(self._token, receipts, deliveries, unsent))
        self.progress.settle(of_batches)
        self._advanced()

    async def _write(self, steps: Steps[bool]) -> None:
        try:
            is_ours = await self.connection.attempt(steps, self._number)
        except Outage as outage:
            self.ended = True
            raise TermEnded(str(outage)) from outage
        if not is_ours:
            self.ended = True
            raise TermEnded(TAKEN)
