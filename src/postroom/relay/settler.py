"""The settler: writes what became of messages, gathered into few statements."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Outcome
from postroom.store.leases import Claimed, Dead, Duplicate, Expired, GivenBack, Retry, Sent, Settlement
from postroom.store.operating import Operating
from postroom.telemetry import HookFailed, Phase, Settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.message import Message
    from postroom.relay.database import Line
    from postroom.relay.office import Office

MOST = 5000
"""Settlements of one statement."""


class Settler:
    """Takes what couriers hand over while it is writing, and writes that next."""

    def __init__(self, office: Office, line: Line) -> None:
        self._office = office
        self._line = line
        self._operating = Operating(office.deliveries)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._office.to_settle.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write all that is waiting to be written."""
        office = self._office
        office.to_settle.clear()
        settlements, office.settlements = office.settlements, []
        work = iter(settlements)
        while chunk := list(islice(work, MOST)):
            await self._write(chunk)
        conflicts, office.conflicts = office.conflicts, []
        if conflicts:
            await self._audit(conflicts)

    async def _write(self, settlements: list[Settlement]) -> None:
        office = self._office
        started = time.monotonic()
        # A message in a lane has no lease of its own to give back: it is read again.
        dropped = [one for one in settlements if isinstance(one, GivenBack) and one.claimed.ordered]
        written = [one for one in settlements if not (isinstance(one, GivenBack) and one.claimed.ordered)]
        lost = await self._line.run(lambda: office.deliveries.settle(written))
        office.failed_keys.settled(
            one.claimed.message.key for one in settlements if one.claimed.message.key and not isinstance(one, Sent)
        )
        office.dropped(dropped)
        office.flight.land(one.claimed for one in settlements)
        office.conflicts.extend(lost)
        gone = {one.position for one in lost}
        settled = [one for one in written if one.claimed.position not in gone] if gone else written
        office.hook(Phase("commit", len(written), time.monotonic() - started))
        self.report(settled)

    async def _audit(self, conflicts: Sequence[Claimed]) -> None:
        worker = self._office.options.worker
        await self._line.run(lambda: self._operating.record_conflicts(worker, conflicts))
        self._office.hook(Settled(Outcome.CONFLICT, [one.message for one in conflicts]))

    def report(self, settled: Iterable[Settlement]) -> None:
        """Tell the hook, in one event for all that were sent and one for each that was not."""
        office = self._office
        sent = []
        for one in settled:
            message = one.claimed.message
            match one:
                case Sent():
                    sent.append(message)
                case Duplicate():
                    office.hook(Settled(Outcome.DEDUP_HIT, [message], one.claimed.attempts))
                case Retry():
                    office.hook(Settled(Outcome.RETRY, [message], one.claimed.attempts + 1, one.code, one.message))
                case Dead():
                    attempts = one.claimed.attempts + int(one.attempted)
                    office.hook(Settled(Outcome.DEAD, [message], attempts, one.code, one.message))
                    self._tell(message, one)
                case Expired() | GivenBack():
                    pass
        if sent:
            office.hook(Settled(Outcome.SUCCESS, sent))

    def _tell(self, message: Message, dead: Dead) -> None:
        """Call the user's `on_dead`, which must not be able to stop the relay."""
        on_dead = self._office.options.on_dead
        if on_dead is None:
            return
        try:
            on_dead(message, dead.code, dead.message)
        except Exception as error:  # noqa: BLE001 - reported, and nothing else can be done
            self._office.hook(HookFailed("on_dead", f"{type(error).__name__}: {error}"))
