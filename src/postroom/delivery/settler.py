"""The settler: writes what became of messages, gathered into few statements."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Outcome
from postroom.store.admin.conflicts import Conflicts
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE, Outage
from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    GivenBack,
    Postponed,
    Refiled,
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
    from collections.abc import Iterable, Sequence

    from postroom.delivery.queue_state import Office
    from postroom.store.connections.reconnecting import ReconnectingConnection

MOST = 5000
"""Settlements of one statement."""
TRIES = 3
"""Of a single settlement that the database refuses though it answers."""


def unsent_keys(settlements: Sequence[Settlement]) -> list[str]:
    """Keys of what was not sent, one for each message."""
    return [
        one.claimed.message.key for one in settlements if type(one) is not Sent and one.claimed.message.key is not None
    ]


class Settler:
    """Takes what couriers hand over while it is writing, and writes that next."""

    def __init__(self, office: Office, line: ReconnectingConnection) -> None:
        self._office = office
        self._line = line
        self._operating = Conflicts(office.deliveries)
        self._writing = False
        self._wrote = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._office.to_settle.wait()
            self._writing = True
            await self.flush()
            self._writing = False
            self._wrote.set()

    async def wait_until_written(self) -> None:
        """Return when nothing is waiting to be written."""
        while self._writing or self._office.to_settle.is_set():
            self._wrote.clear()
            await self._wrote.wait()

    async def flush(self) -> None:
        """Write all that is waiting to be written."""
        office = self._office
        office.to_settle.clear()
        settlements, office.settlements = office.settlements, []
        while settlements:
            chunk, settlements = settlements[:MOST], settlements[MOST:]
            await self._settle(chunk, settlements)
        conflicts, office.conflicts = office.conflicts, []
        if conflicts:
            await self.audit(conflicts)

    async def _settle(self, settlements: list[Settlement], rest: list[Settlement]) -> None:
        """Write settlements until the database has them; the rest comes after them."""
        pause, refused = FIRST_PAUSE, 0
        while True:
            try:
                await self._write(settlements, rest)
                return
            except Outage as outage:
                if await self._line.answers():
                    if len(settlements) > 1:  # it is the statement: find out which settlement is at fault
                        middle = len(settlements) // 2
                        await self._settle(settlements[:middle], [*settlements[middle:], *rest])
                        await self._settle(settlements[middle:], rest)
                        return
                    refused += 1
                    if refused == TRIES:
                        self._give_up(settlements[0], outage)
                        return
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _write(self, settlements: list[Settlement], rest: list[Settlement]) -> None:
        office = self._office
        started = time.monotonic()
        connection = await office.continuity.on(self._line)
        if forsaken := office.flight.forsaken:
            settlements = [one for one in settlements if (one.claimed.lane, one.claimed.token) not in forsaken]
        # A message in a lane has no lease of its own to give back: it is read again.
        dropped = [one.claimed for one in settlements if type(one) is GivenBack and one.claimed.ordered]
        written = settlements
        if dropped:
            # Where the lane's lease has ended by our clock, the database is asked whether somebody else has it.
            held = {one.lease for one in office.flight.held(dropped, started)}
            written = [one for one in settlements if type(one) is not GivenBack or one.claimed.lease not in held]
        lost, instead = await self._line.attempt(office.deliveries.write(written), connection)
        if instead:
            self._hold_back(instead.values())
            written = [instead.get(one.claimed.lease, one) for one in written]
            settlements = [instead.get(one.claimed.lease, one) for one in settlements]
        if office.failed_keys:
            unwritten = {*unsent_keys(rest), *unsent_keys(office.settlements)}
            office.failed_keys.settled([key for key in unsent_keys(settlements) if key not in unwritten])
        for one in dropped:
            office.flight.read_again(one.lane, one.position)
        office.conflicts.extend([one for one in lost if office.flight.messages.get(one.position) is one])
        office.flight.land([one.claimed for one in settlements])
        gone = {one.lease for one in lost}
        settled = [one for one in written if one.claimed.lease not in gone] if gone else written
        office.hook(Phase("commit", len(written), time.monotonic() - started))
        self.report(settled)

    def _hold_back(self, instead: Iterable[Settlement]) -> None:
        """What comes behind messages that are dead after all must wait."""
        for one in instead:
            if isinstance(one, Dead) and one.claimed.message.key is not None:
                self._office.failed_keys.fail(one.claimed.message.key, one.claimed.position)

    def _give_up(self, settlement: Settlement, outage: Outage) -> None:
        """The database refuses this one: its lease runs out, and it is sent again."""
        office = self._office
        office.flight.land([settlement.claimed])
        is_late = isinstance(outage.__cause__, TimeoutError) or is_lock_timeout(outage.__cause__ or outage)
        outcome = Outcome.DB_TIMEOUT if is_late else Outcome.DB_ERROR
        office.hook(NotSettled(settlement.claimed.message, str(outage), outcome))

    async def audit(self, conflicts: Sequence[Claimed]) -> None:
        """Write down leases that were lost, with what was found instead."""
        worker = self._office.options.worker
        await self._line.run(lambda: self._operating.record(worker, conflicts))
        messages = [one.message for one in conflicts]
        self._office.hook(Settled(Outcome.CONFLICT, messages, broker=self._office.broker.name))

    def report(self, settled: Sequence[Settlement]) -> None:
        """Tell the hook, in one event for all that were sent and one for each that failed."""
        office = self._office
        sent = [one.claimed.message for one in settled if type(one) is Sent]
        if sent:
            office.hook(Settled(Outcome.SUCCESS, sent, broker=office.broker.name))
        if len(sent) < len(settled):
            waiting = sum(type(one) is Postponed for one in settled)
            if waiting:
                office.hook(PostponedEvent(waiting))
            for one in settled:
                self._report_unsent(one)
            office.wake()

    def _report_unsent(self, one: Settlement) -> None:
        office = self._office
        message, broker = one.claimed.message, office.broker.name
        seconds = office.seconds.pop(one.claimed.position, 0.0)
        match one:
            case Sent() | Postponed():
                pass
            case GivenBack():
                office.rows_given_back = True
            case Refiled():
                if one.queue in office.neighbours:
                    office.neighbours[one.queue].moved_in()
            case Expired():
                office.hook(ExpiredEvent([message]))
            case Duplicate():
                office.hook(Settled(Outcome.DEDUP_HIT, [message], one.claimed.attempts, broker=broker))
            case Retry():
                attempts = one.claimed.attempts + 1
                office.hook(Settled(Outcome.RETRY, [message], attempts, one.code, one.message, broker, seconds))
            case Dead():
                attempts = one.claimed.attempts + int(one.attempted)
                office.hook(Settled(Outcome.DEAD, [message], attempts, one.code, one.message, broker, seconds))
                self._tell(one)

    def _tell(self, dead: Dead) -> None:
        """Call the user's `on_dead`, which must not be able to stop the relay."""
        on_dead = self._office.options.on_dead
        if on_dead is None:
            return
        try:
            on_dead(dead.claimed.message, dead.code, dead.message)
        except Exception as error:  # noqa: BLE001 - reported, and nothing else can be done
            self._office.hook(HookFailed("on_dead", type(error).__name__, raised_at(error)))
