"""The journal in the database: how a relay runs and records the instances of one saga."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from postroom.rules.failures import Reason
from postroom.runtime.backoff import Backoff
from postroom.runtime.calls import CannotCall, StillRunning
from postroom.saga.running.journal import EarlierCallHangs, NotBegun
from postroom.saga.running.log_writer import FIRST_LOCKED, LONGEST_LOCKED
from postroom.saga.running.step_transactions import WrongDatabase
from postroom.store.saga.values import Locked, Logged
from postroom.store.sql.db_errors import is_lock_timeout, is_lost_connection, is_unable_to_write, is_undone, reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

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

T = TypeVar("T")

AT_ONCE = 5
"""How often a step runs without a pause that the database undoes in favour of another transaction."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds, roughly, before it runs again after that."""
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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        alone: asyncio.Lock | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`alone` lets only one step have a transaction at a time."""
        self._store = store
        self._connection = connection
        self._log = log
        self._calls = calls
        self._transactions = transactions
        self._sleep = sleep
        self._alone = alone
        self._is_stopping = is_stopping

    def monotonic(self) -> float:
        """Seconds, by this process's clock."""
        return time.monotonic()

    def now(self) -> datetime:
        """The time of day."""
        return datetime.now(UTC)

    async def read(self, claimed: Claimed) -> Instance | None:
        """Read the instance again; None if the lease is lost, unless that is because it has ended."""
        return await self._when_free(lambda: self._store.sql.unless_locked(self._read, claimed))

    def _read(self, claimed: Claimed) -> Steps[Instance | None]:
        """Keep the lock until the record is read: what another worker does after it is not this one's to go on from."""
        is_held = yield from self._store.holds(claimed)
        instance = (yield from self._store.read([claimed.position])).get(claimed.position)
        return instance if is_held or (instance is not None and instance.outcome) else None

    async def run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
        """Call a function and write its record in one transaction.

        If the database undoes it in favour of another transaction, or it has waited for a lock in vain, it runs again:
        at first at once, then after pauses, all as one attempt. That is over when its time is.
        """
        started, tries, backoff = self.monotonic(), 0, Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            try:
                return await self._run_step(call, record)
            except Exception as error:
                if not is_undone(error) and not is_lock_timeout(error):
                    raise
                tries += 1
                pause = 0.0 if tries < AT_ONCE else backoff.next() * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
                if self.monotonic() - started + pause >= call.timeout:
                    raise
            await self._sleep(pause)
            call = call.again()

    async def _run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
        transactions = self._transactions

        def blocking(call: StepCall) -> Logged:
            self._require_going_on()
            return transactions.run(call, record)

        async def waiting(call: StepCall) -> Logged:
            self._require_going_on()
            return await transactions.arun(call, record)

        try:
            return await self._calls.run(call, blocking, waiting, self._alone)
        except WrongDatabase as error:
            raise NotBegun(MISCONFIGURED, WRONG_DATABASE, str(error)) from error
        except CannotCall as error:
            raise _not_begun(error) from error
        except StillRunning:
            raise EarlierCallHangs(call.step, call.timeout) from None
        except Exception as error:
            if call.may_be_committed and is_lost_connection(error):
                return Logged.DONE_BEFORE  # perhaps: the record tells
            if is_unable_to_write(error):
                raise NotBegun(SHORTLY, Reason.CONNECTION, f"the database stores nothing: {reason(error)}") from error
            raise

    def _require_going_on(self) -> None:
        """Begin nothing more if the relay stops. Many may have waited for their turn."""
        if self._is_stopping():
            raise NotBegun(0.0, "", "the relay stops")

    async def run_call(self, call: StepCall) -> Returned:
        """Call a function while no transaction is open."""
        try:
            return await self._calls.run(call, lambda call: call.run(None), lambda call: call.arun(None))
        except StillRunning:
            raise EarlierCallHangs(call.step, call.timeout) from None
        except CannotCall as error:
            if call.is_in_function or call.has_returned:
                # It may have had its effect: that is an attempt, though the database is away, too.
                raise ConnectionError(str(error)) from error
            raise _not_begun(error) from error

    async def log(self, claimed: Claimed, record: Record) -> Logged:
        """Write a record together with those of other instances."""
        return await self._log.log(claimed, record)

    async def turn(self, claimed: Claimed, turning: Turning, token: int) -> bool:
        """Change the direction and the token."""
        entries, step, code, text = turning
        return await self._when_free(lambda: self._store.turn(claimed, entries, step, code, text, token=token))

    async def wait(
        self,
        claimed: Claimed,
        step: str,
        event: str | None,
        due_in: float,
        after: UUID | None = None,
        unreadable: str = "",
    ) -> Waiting:
        """Look for an event; if there is none, give up the lease until one comes or the time has passed."""
        return await self._when_free(lambda: self._store.wait(claimed, step, event, due_in, after, unreadable))

    async def park(self, claimed: Claimed, step: str, code: str, text: str, *, attempted: bool) -> bool:
        """Leave the instance to an operator."""
        return await self._when_free(lambda: self._store.park(claimed, step, code, text, attempted))

    async def put_back(self, claimed: Claimed, code: str, text: str, seconds: float, *, tried: bool = False) -> bool:
        """Give up the lease for some seconds without counting an attempt."""
        return await self._when_free(lambda: self._store.put_back(claimed, code, text, seconds, tried=tried))

    async def _when_free(self, operation: Callable[[], Steps[T | Locked]]) -> T:
        """Run an operation until it is done. Where somebody else has locked the instance, others go on meanwhile."""
        backoff = Backoff(FIRST_LOCKED, LONGEST_LOCKED)
        while True:
            result = await self._connection.run(operation)
            if not isinstance(result, Locked):
                return result
            await self._sleep(backoff.next())


def _not_begun(error: CannotCall) -> NotBegun:
    return NotBegun(SHORTLY, Reason.CONNECTION, str(error))
