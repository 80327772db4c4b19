"""A step's transaction: what its function writes and the step's log commit together, or not at all."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting, PostroomError
from postroom.runtime.calls import CannotCall
from postroom.saga.running.step_failures import StepMisused
from postroom.saga.running.transaction_guards import AsyncGuard, SyncGuard, explained
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.saga.values import Logged
from postroom.store.sql.db_errors import is_denied, is_lost_connection, is_missing_table, is_timeout, is_undone, reason
from postroom.store.sql.steps import arun, run
from postroom.telemetry.tracebacks import AFTERWARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.compose.transactions import Transactions
    from postroom.saga.running.journal import Record
    from postroom.saga.running.step_calls import Returned, StepCall
    from postroom.store.saga.saga_store import SagaStore
    from postroom.store.sql.steps import Steps

    MakeRecord = Callable[[Returned], Record]


class WrongDatabase(InvalidSetting):
    """The step's transaction is in a database that does not have the saga."""


class _RollBack(Exception):
    """Leaves the transaction without committing it."""

    def __init__(self, logged: Logged) -> None:
        super().__init__(logged.name)
        self.logged = logged


class StepTransactions:
    """Calls functions in the caller's own thread or task, without a time limit.

    `run` and `arun` call the function and write its record last, so that only the commit follows. They return what
    became of it: unless it is `WRITTEN`, nothing stays. They raise what the function or the database raised,
    `CannotCall` if no transaction could be opened or the record is locked, `TimeoutError` if the call is late by then,
    `StepMisused` if the function has ended the transaction, and `WrongDatabase`; then nothing stays either, unless the
    answer to the commit was lost (`StepCall.may_be_committed`).
    """

    def __init__(self, store: SagaStore, transactions: Transactions) -> None:
        self._store = store
        self._transactions = transactions

    def run(self, call: StepCall, record: MakeRecord) -> Logged:
        """Call a sync function."""
        try:
            with _explaining(call), self._transactions.blocking() as connection:
                kind = sync_kind(connection, "saga.start")
                with _at_home():
                    _require_lease(is_held=run(self._begin(call, kind.dialect), kind.execute))
                guard = SyncGuard(connection, kind)
                with guard.watching():
                    returned = call.run(connection)
                guard.check()
                call.check_time()
                with _at_home():
                    _require_written(run(self._log(call, record(returned)), kind.execute))
                call.check_time()
                call.note_logged()
        except _RollBack as rolled_back:
            return rolled_back.logged
        return Logged.WRITTEN

    async def arun(self, call: StepCall, record: MakeRecord) -> Logged:
        """Call an async function."""
        try:
            with _explaining(call):
                async with self._transactions.waiting() as connection:
                    kind = await async_kind(connection, "saga.astart")
                    with _at_home():
                        _require_lease(is_held=await arun(self._begin(call, kind.dialect), kind.execute))
                    guard = AsyncGuard(connection, kind)
                    await guard.begin()
                    with guard.watching():
                        returned = await call.arun(connection)
                    await guard.check()
                    call.check_time()
                    with _at_home():
                        _require_written(await arun(self._log(call, record(returned)), kind.execute))
                    call.check_time()
                    call.note_logged()
        except _RollBack as rolled_back:
            return rolled_back.logged
        return Logged.WRITTEN

    def _begin(self, call: StepCall, dialect: str) -> Steps[bool]:
        ours = self._store.sql.names.dialect
        if dialect != ours:
            raise WrongDatabase(f"the transactions of steps are on {dialect}, and the sagas on {ours}: {_REMEDY}")
        is_held = yield from self._store.begin(call.claimed)
        if not is_held:
            yield from self._require_saga(call)
        return is_held

    def _log(self, call: StepCall, record: Record) -> Steps[Logged]:
        logged = yield from self._store.log(
            *(call.claimed, record.entries, record.end),
            event=record.event,
            tell=record.tell,
            keeps_attempts=record.keeps_attempts,
        )
        if logged is Logged.LEASE_LOST:
            yield from self._require_saga(call)
        return logged

    def _require_saga(self, call: StepCall) -> Steps[None]:
        if not (yield from self._store.read([call.claimed.position])):
            raise WrongDatabase(f"the transactions of steps are on a database without this saga: {_REMEDY}")


_REMEDY = "let `transactions` open those of the database that the relay reads"


def _require_lease(*, is_held: bool) -> None:
    if not is_held:
        raise _RollBack(Logged.LEASE_LOST)


def _require_written(logged: Logged) -> None:
    if logged is not Logged.WRITTEN:
        raise _RollBack(logged)


@contextmanager
def _at_home() -> Iterator[None]:
    """Explain an error of our own statements."""
    try:
        yield
    except Exception as error:
        if is_missing_table(error) or is_denied(error):
            problem = f"the transactions of steps cannot write the saga's log ({type(error).__name__}): {_REMEDY}"
            raise WrongDatabase(problem) from error
        if is_timeout(error):  # as while an operator has the saga in hand: no fault of the function
            raise CannotCall(f"the step's log cannot be written now: {reason(error)}") from error
        raise explained(error) from error


@contextmanager
def _explaining(call: StepCall) -> Iterator[None]:
    """Tell what the function raised from what was raised before it was called, or after it had returned.

    Without a transaction, as when the pool is exhausted, it was not tried: that counts as no attempt. An ORM writes
    late: an error after the return comes from none of the function's lines, and gets a note.
    """
    try:
        yield
    except Exception as error:
        if not (call.is_in_function or call.has_returned or _is_understood(error)):
            text = f"the transaction of {call.step!r} cannot be opened: {type(error).__name__}: {reason(error)}"
            raise CannotCall(text) from error
        if call.has_returned and not isinstance(error, _RollBack | TimeoutError | PostroomError | StepMisused):
            error.add_note(AFTERWARDS)
        raise


def _is_understood(error: Exception) -> bool:
    """Whether it is known what follows an error that came before the function was called."""
    return isinstance(error, _RollBack | PostroomError) or is_lost_connection(error) or is_undone(error)
