"""The journal in the database: how a relay runs and records the instances of one saga."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from postroom.rules.failures import Reason
from postroom.runtime.calls import CannotCall, StillRunning
from postroom.saga.running.journal import NotBegun
from postroom.saga.running.step_transactions import WrongDatabase
from postroom.store.saga.values import Logged
from postroom.store.sql.db_errors import is_lost_connection, is_undone

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.runtime.calls import Calls
    from postroom.saga.running.journal import Record, Turning
    from postroom.saga.running.log_writer import LogWriter
    from postroom.saga.running.step_calls import Returned, StepCall
    from postroom.saga.running.step_transactions import StepTransactions
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.saga_store import SagaStore
    from postroom.store.saga.values import Instance, Waiting
    from postroom.store.sql.steps import Steps

UNDONE = 5
"""How often a step runs that the database undoes in favour of another transaction. No attempt counts."""
SHORTLY = 1.0
"""Seconds until a function is tried again that could not be called."""
MISCONFIGURED = 30.0
"""The same, if somebody has to mend something first."""
WRONG_DATABASE = "WRONG_DATABASE"


class StoredJournal:
    """Runs the functions of one saga, and keeps its record. See `Journal`."""

    def __init__(
        self,
        store: SagaStore,
        connection: Connection,
        log: LogWriter,
        calls: Calls,
        transactions: StepTransactions,
    ) -> None:
        self._store = store
        self._connection = connection
        self._log = log
        self._calls = calls
        self._transactions = transactions

    def monotonic(self) -> float:
        """Seconds, by this process's clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time of day."""
        return datetime.now(UTC)

    async def read(self, claimed: Claimed) -> Instance | None:
        """Read the instance again; None if the lease is lost, unless that is because it has ended."""
        return await self._connection.run(lambda: self._store.sql.transaction(self._read, claimed))

    def _read(self, claimed: Claimed) -> Steps[Instance | None]:
        """Keep the lock until the record is read: what another worker does after it is not this one's to go on from."""
        is_held = yield from self._store.holds(claimed)
        instance = (yield from self._store.read([claimed.position])).get(claimed.position)
        return instance if is_held or (instance is not None and instance.outcome) else None

    async def run_step(self, claimed: Claimed, call: StepCall, record: Callable[[Returned], Record]) -> Logged:  # noqa: ARG002 - the call has it
        """Call a function and write its record in one transaction."""
        for _ in range(UNDONE - 1):
            try:
                return await self._run_step(call, record)
            except Exception as error:
                if not is_undone(error):
                    raise
                call = call.again()
        return await self._run_step(call, record)

    async def _run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
        transactions = self._transactions
        try:
            return await self._calls.run(
                call, lambda call: transactions.run(call, record), lambda call: transactions.arun(call, record)
            )
        except WrongDatabase as error:
            raise NotBegun(MISCONFIGURED, WRONG_DATABASE, str(error)) from error
        except (CannotCall, StillRunning) as error:
            raise _not_begun(error, call) from error
        except Exception as error:
            if call.may_be_committed and is_lost_connection(error):
                return Logged.DONE_BEFORE  # perhaps: the record tells
            raise

    async def run_call(self, call: StepCall) -> Returned:
        """Call a function while no transaction is open."""
        try:
            return await self._calls.run(call, lambda call: call.run(None), lambda call: call.arun(None))
        except (CannotCall, StillRunning) as error:
            if call.is_in_function or call.has_returned:
                # It may have had its effect: that is an attempt, though the database is away, too.
                raise ConnectionError(str(error)) from error
            raise _not_begun(error, call) from error

    async def log(self, claimed: Claimed, record: Record) -> Logged:
        """Write a record together with those of other instances."""
        return await self._log.log(claimed, record)

    async def turn(self, claimed: Claimed, turning: Turning, token: int) -> bool:
        """Change the direction and the token."""
        entries, step, code, text = turning
        return await self._connection.run(lambda: self._store.turn(claimed, entries, step, code, text, token=token))

    async def wait(self, claimed: Claimed, step: str, event: str | None, due_in: float) -> Waiting:
        """Look for an event; if there is none, give up the lease until one comes or the time has passed."""
        return await self._connection.run(lambda: self._store.wait(claimed, step, event, due_in))

    async def park(self, claimed: Claimed, step: str, code: str, text: str, *, attempted: bool) -> bool:
        """Leave the instance to an operator."""
        return await self._connection.run(lambda: self._store.park(claimed, step, code, text, attempted))

    async def put_back(self, claimed: Claimed, code: str, text: str, seconds: float) -> bool:
        """Give up the lease for some seconds without counting an attempt."""
        return await self._connection.run(lambda: self._store.put_back(claimed, code, text, seconds))


def _not_begun(error: CannotCall | StillRunning, call: StepCall) -> NotBegun:
    if isinstance(error, StillRunning):
        text = f"an earlier call of {call.step!r} has not ended although its time is up: it is tried when that has"
        return NotBegun(call.timeout, Reason.TIMEOUT, text)
    return NotBegun(SHORTLY, Reason.CONNECTION, str(error))
