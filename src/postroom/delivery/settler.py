"""The settler: writes settlements to the database, many in one statement, and reports what was written."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.delivery.pending import unsent_keys
from postroom.rules.lifecycle import OutcomeCode
from postroom.runtime.backoff import Backoff
from postroom.store.admin.conflicts import Conflicts
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE, CannotWrite, Outage
from postroom.store.connections.shared import SteppedAside
from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    GivenBack,
    Postponed,
    Rerouted,
    Retry,
    Sent,
    Settlement,
)
from postroom.store.sql.db_errors import is_lock_timeout
from postroom.telemetry.events import Expired as ExpiredEvent
from postroom.telemetry.events import HookFailed, NotSettled, Phase, Settled
from postroom.telemetry.events import Postponed as PostponedEvent
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroom.delivery.continuity import Continuity
    from postroom.delivery.failed_keys import FailedKeys
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import Queue
    from postroom.delivery.signals import Signals
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.queue_store import QueueStore

MOST = 5000
"""Settlements in one statement."""
TRIES = 3
"""Attempts to write a single settlement that the database refuses although it answers."""


@dataclass(slots=True, eq=False, kw_only=True)
class Settler:
    """Writes what was handed over; what is handed over meanwhile is written next."""

    queue: Queue
    worker: str
    store: QueueStore
    connection: Connection
    pending: PendingSettlements
    in_flight: InFlight
    failed_keys: FailedKeys
    continuity: Continuity
    signals: Signals
    moved_to: Callable[[str], None]
    _writing: bool = field(default=False, init=False)
    _wrote: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.pending.waiting.wait()
            self._writing = True
            await self.flush()
            self._writing = False
            self._wrote.set()

    async def wait_until_written(self) -> None:
        """Return when nothing is waiting to be written."""
        while self._writing or self.pending.waiting.is_set():
            self._wrote.clear()
            await self._wrote.wait()

    async def flush(self) -> None:
        """Write all that is waiting to be written."""
        pending = self.pending.take_pending()
        while pending:
            chunk, pending = pending[:MOST], pending[MOST:]
            await self._settle(chunk, pending)
        conflicts = self.pending.take_conflicts()
        if conflicts:
            await self.audit(conflicts)

    async def _settle(self, settlements: list[Settlement], rest: list[Settlement]) -> None:
        """Write settlements until the database has them; the rest comes after them."""
        backoff, refused = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0
        while True:
            try:
                await self._write(settlements, rest)
                return
            except SteppedAside:
                continue
            except Outage as outage:
                if not isinstance(outage, CannotWrite) and await self.connection.answers():
                    if len(settlements) > 1:  # it is the statement: find out which settlement is at fault
                        middle = len(settlements) // 2
                        await self._settle(settlements[:middle], [*settlements[middle:], *rest])
                        await self._settle(settlements[middle:], rest)
                        return
                    refused += 1
                    if refused == TRIES:
                        self._give_up(settlements[0], outage)
                        return
                await asyncio.sleep(backoff.next())

    async def _write(self, settlements: list[Settlement], rest: list[Settlement]) -> None:
        started = time.monotonic()
        connection = await self.continuity.on(self.connection)
        if self.in_flight.lanes.any_abandoned:
            settlements = [one for one in settlements if self.in_flight.lanes.may_settle(one.claimed)]
        # A message in a lane has no lease of its own to give back: it is read again.
        dropped = [one.claimed for one in settlements if type(one) is GivenBack and one.claimed.ordered]
        written = settlements
        if dropped:
            # Where the lane's lease has ended by our clock, the database is asked whether somebody else has it.
            held = {one.lease for one in self.in_flight.held(dropped, started)}
            written = [one for one in settlements if type(one) is not GivenBack or one.claimed.lease not in held]
        lost, instead = await self.connection.attempt(self.store.settlements.write(written), connection)
        if instead:
            self._hold_back(instead.values())
            written = [instead.get(one.claimed.lease, one) for one in written]
            settlements = [instead.get(one.claimed.lease, one) for one in settlements]
        if self.failed_keys:
            unwritten = {*unsent_keys(rest), *self.pending.unsent_keys()}
            self.failed_keys.settled([key for key in unsent_keys(settlements) if key not in unwritten])
        for one in dropped:
            self.in_flight.lanes.read_again(one.lane, one.position)
        if lost:
            self.pending.add_conflicts(self.in_flight.remaining(lost))
        self.in_flight.land([one.claimed for one in settlements])
        gone = {one.lease for one in lost}
        settled = [one for one in written if one.claimed.lease not in gone] if gone else written
        self.queue.hook(Phase("commit", len(written), time.monotonic() - started, queue=self.queue.name))
        self.report(settled)

    def _hold_back(self, instead: Iterable[Settlement]) -> None:
        """Messages are dead after all: what comes behind them must wait."""
        for one in instead:
            if isinstance(one, Dead) and one.claimed.message.key is not None:
                self.failed_keys.fail(one.claimed.message.key, one.claimed.position)

    def _give_up(self, settlement: Settlement, outage: Outage) -> None:
        """The database refuses this one: its lease runs out, and it is sent again."""
        self.in_flight.land([settlement.claimed])
        is_late = isinstance(outage.__cause__, TimeoutError) or is_lock_timeout(outage.__cause__ or outage)
        outcome = OutcomeCode.DB_TIMEOUT if is_late else OutcomeCode.DB_ERROR
        self.queue.hook(NotSettled(settlement.claimed.message, str(outage), outcome, self.queue.name))

    async def audit(self, conflicts: Sequence[Claimed]) -> None:
        """Record leases that were lost, with what was found instead. Retries until the database has them."""
        record = Conflicts(self.store.sql).record
        await self.connection.run(lambda: record(self.worker, conflicts))
        messages = [one.message for one in conflicts]
        self.queue.hook(
            Settled(OutcomeCode.CONFLICT, messages, broker=self.queue.destination.name, queue=self.queue.name)
        )

    def report(self, settled: Sequence[Settlement]) -> None:
        """Emit one event for all that were sent, and one for each that failed; wake who can work on that."""
        sent = [one.claimed.message for one in settled if type(one) is Sent]
        if sent:
            self.queue.hook(
                Settled(OutcomeCode.SUCCESS, sent, broker=self.queue.destination.name, queue=self.queue.name)
            )
        if len(sent) < len(settled):
            waiting = sum(type(one) is Postponed for one in settled)
            if waiting:
                self.queue.hook(PostponedEvent(waiting, self.queue.name))
            for one in settled:
                self._report_unsent(one)
            self.signals.wake()

    def _report_unsent(self, one: Settlement) -> None:
        hook, broker, queue = self.queue.hook, self.queue.destination.name, self.queue.name
        message, seconds = one.claimed.message, self.pending.seconds_of(one.claimed)
        match one:
            case Sent() | Postponed():
                pass
            case GivenBack():
                self.signals.rows_behind()
            case Rerouted():
                self.moved_to(one.queue)
            case Expired():
                hook(ExpiredEvent([message], queue))
            case Duplicate():
                hook(Settled(OutcomeCode.DEDUP_HIT, [message], one.claimed.attempts, broker=broker, queue=queue))
            case Retry():
                attempts = one.claimed.attempts + 1
                hook(Settled(OutcomeCode.RETRY, [message], attempts, one.code, one.message, broker, seconds, queue))
            case Dead():
                attempts = one.claimed.attempts + int(one.attempted)
                hook(Settled(OutcomeCode.DEAD, [message], attempts, one.code, one.message, broker, seconds, queue))
                self._call_on_dead(one)

    def _call_on_dead(self, dead: Dead) -> None:
        """Call the user's `on_dead`, which must not be able to stop the engine."""
        if self.queue.on_dead is None:
            return
        try:
            self.queue.on_dead(dead.claimed.message, dead.code, dead.message)
        except Exception as error:  # noqa: BLE001 - reported, and nothing else can be done
            self.queue.hook(HookFailed("on_dead", type(error).__name__, raised_at(error)))
