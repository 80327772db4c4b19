"""Recovery as a destination: the engine hands over transactions in doubt, and each is retried by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.port import ACCEPTED, Capabilities, Refused, Unreached
from postroom.rules.failures import Failure
from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_settling import Again, Confirmed, Quarantine
from postroom.store.sql.db_errors import is_of_database, reason
from postroom.store.twophase.recovery_queue import transaction_of
from postroom.telemetry.transaction_events import TransactionEnd, TransactionRecovered
from postroom.twophase.rounds import adrive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.destination import Outcome
    from postroom.store.outbox.leases import Claimed
    from postroom.telemetry.events import Hook
    from postroom.twophase.findings import Settled
    from postroom.twophase.recovery import Recovery

WAITING = "WAITING"
"""Code of a transaction that cannot be finished yet: a participant does not answer, or somebody else is at it."""


class TransactionDestination:
    """Finishes transactions that their coordinators left behind."""

    name = "two-phase commit"
    capabilities = Capabilities()
    settles_itself = False

    def __init__(self, recovery: Recovery, hook: Hook) -> None:
        self._recovery = recovery
        self._hook = hook

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ARG002, ASYNC109 - the port's; each call has a time limit of its own
        """Finish each transaction as its log says."""
        txs = [transaction_of(one.message) for one in claimed]
        try:
            listing = await adrive(self._recovery.look([tx for tx in txs if tx]))
            left = sorted({tx for tx in txs if tx and not listing.is_over(tx)})
            settled = await adrive(self._recovery.settle(left, listing))
        except Exception as error:
            if not is_of_database(error):
                raise
            return [Unreached(reason(error)) for _ in claimed]
        results = {one.id: one for one in settled}
        for one in settled:
            self._hook(_event(one))
        return [_outcome(results.get(tx)) for tx in txs]

    async def close(self) -> None:
        """Do nothing: the connections are those of the `TwoPhaseCommit`."""


def _outcome(settled: Settled | None) -> Outcome:
    if settled is None or isinstance(settled.settling, Confirmed):
        return ACCEPTED
    why = settled.problem or f"not confirmed by {', '.join(settled.waits_for) or 'its log'}"
    return Refused(_code(settled), why, Failure.TRANSIENT)


def _event(settled: Settled) -> TransactionRecovered:
    match settled.settling:
        case Confirmed() if settled.decision is Decision.COMMIT:
            return TransactionRecovered(settled.id, TransactionEnd.COMMITTED)
        case Confirmed():
            return TransactionRecovered(settled.id, TransactionEnd.ROLLED_BACK)
        case Again():
            return TransactionRecovered(settled.id, TransactionEnd.WAITING, WAITING)
        case Quarantine():
            return TransactionRecovered(settled.id, TransactionEnd.QUARANTINED, _code(settled))


def _code(settled: Settled) -> str:
    return settled.settling.trouble.name if isinstance(settled.settling, Quarantine) else WAITING
