"""The sagas of one process: builds for each what runs its instances, on connections that they share."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Any

from postroom.compose.transactions import Transactions
from postroom.errors import InvalidSetting
from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.runtime.calls import Calls, Words
from postroom.saga.running.destination import SagaDestination
from postroom.saga.running.events_received import EventsReceived
from postroom.saga.running.log_writer import LogWriter
from postroom.saga.running.reports import Reports
from postroom.saga.running.running import Running
from postroom.saga.running.step_transactions import StepTransactions
from postroom.saga.running.stored_journal import StoredJournal
from postroom.saga.steps import named
from postroom.store.connections.reconnecting import QUICK
from postroom.store.connections.shared import SharedConnection
from postroom.store.saga.saga_store import SagaStore
from postroom.store.sql.db_errors import is_lost_connection
from postroom.telemetry.events import HookFailed, Reachability
from postroom.telemetry.tracebacks import raised_at
from postroom.telemetry.traces import tracer_of

if TYPE_CHECKING:
    from postroom.delivery.queue import OnDead
    from postroom.rules.failures import Classifier
    from postroom.saga.saga import Saga
    from postroom.store.connections.reconnecting import Database
    from postroom.store.outbox.leases import Claimed
    from postroom.telemetry.events import Hook

WORDS = Words("steps", "saga")


class SagasAtWork:
    """What the sagas of a process share: connections for logs and for all else, and the transactions of their steps."""

    def __init__(
        self,
        database: Database,
        url: str | None,
        *,
        worker: str,
        concurrency: int,
        hook: Hook,
        notify: bool = False,
        classifier: Classifier = DEFAULT_CLASSIFIER,
        on_dead: OnDead | None = None,
    ) -> None:
        """`url` is the database's, for steps of sagas that name no `transactions` of their own.

        `concurrency` is how many instances of each saga run at a time. `on_dead` is called for what is parked.
        """
        self._database = database
        self._url = url
        self._worker = worker
        self._concurrency = concurrency
        self._hook = hook
        self._notify = notify
        self._classifier = classifier
        self._on_dead = on_dead
        self._logs = database.connect(QUICK)
        self._others = database.connect(QUICK)
        self._spare = database.connect()
        """For a saga whose statements wait for locks, so that the others go on."""
        self._alone = asyncio.Lock() if database.store.names.dialect == "sqlite" else None
        """For steps on SQLite, which has one writer: they take turns here, where nobody is overtaken or times out."""
        self._shared: Transactions | None = None
        self._opened: list[Transactions] = []
        self._calls: list[Calls] = []
        self._checks: list[tuple[Saga[Any], Transactions, Calls]] = []

    def destination(self, saga: Saga[Any]) -> SagaDestination:
        """What runs the instances of this saga."""
        store = SagaStore(self._database.store.names, saga.name, notify=self._notify)
        others = SharedConnection(self._others, self._spare)
        calls = Calls(
            WORDS,
            self._concurrency * _widest_group(saga),
            database_answers=others.answers,
            is_lost_connection=is_lost_connection,
            report=lambda problem: self._hook(
                Reachability(f"steps of {saga.name}", problem is None, problem or "", saga.queue)
            ),
        )
        self._calls.append(calls)
        transactions = self._transactions(saga)
        log = LogWriter(store, SharedConnection(self._logs, self._spare))
        reports = Reports(saga.name, self._hook)
        made: list[SagaDestination] = []
        running = Running(
            saga=saga,
            journal=StoredJournal(
                *(store, others, log, calls, StepTransactions(store, transactions)),
                alone=self._alone,
                is_stopping=lambda: made[0].is_stopping,
            ),
            reports=reports,
            classifier=self._classifier,
            worker=self._worker,
            tracer=tracer_of(self._hook),
            is_stopping=lambda: made[0].is_stopping,
            replace=lambda old, new: made[0].replace(old, new),  # noqa: PLW0108 - made below
            on_parked=self._call_on_dead,
        )
        self._checks.append((saga, transactions, calls))
        events = EventsReceived(saga.name, store, others, reports)
        made.append(SagaDestination(running, store, others, log, events, self._concurrency, self._hook))
        return made[0]

    async def check(self) -> None:
        """Open a transaction of each kind that steps need, and leave it.

        Raises `InvalidSetting`, `UnusableConnection` or `DatabaseUnreachable`.
        """
        for saga, transactions, calls in self._checks:
            functions = _in_transactions(saga)
            for is_async in sorted({one.is_async for one in functions}):
                try:
                    await transactions.check({is_async}, calls.in_thread)
                except InvalidSetting as error:
                    names = ", ".join(named(one.function) for one in functions if one.is_async is is_async)
                    raise InvalidSetting(f"saga {saga.name!r} ({names}): {error}") from error

    async def close(self) -> None:
        """Close what was opened here. Destinations are closed by their engine's owner."""
        for calls in self._calls:
            calls.close()
        for transactions in self._opened:
            await transactions.close()

    def _transactions(self, saga: Saga[Any]) -> Transactions:
        if saga.transactions is None and self._shared is not None:
            return self._shared
        opened = Transactions(saga.transactions, self._url, "step", kept=self._concurrency)
        self._opened.append(opened)
        if saga.transactions is None:
            self._shared = opened
        return opened

    def _call_on_dead(self, claimed: Claimed, code: str, text: str) -> None:
        """Call the user's `on_dead`, which must not be able to stop the relay."""
        if self._on_dead is None:
            return
        try:
            self._on_dead(claimed.message, code, text)
        except Exception as error:  # noqa: BLE001 - reported, and nothing else can be done
            self._hook(HookFailed("on_dead", type(error).__name__, raised_at(error)))


def _widest_group(saga: Saga[Any]) -> int:
    """How many functions of one instance may run at the same time."""
    return max((len(list(steps)) for group, steps in groupby(saga.plan, lambda one: one.group) if group), default=1)


def _in_transactions(saga: Saga[Any]) -> list[Any]:
    """The functions that get a transaction."""
    steps = [one for one in saga.steps.values() if one.kind != "call"]
    with_function = [one for one in steps if getattr(one, "has_function", True)]
    return [*with_function, *(one.undo for one in steps if one.undo is not None)]
