"""Relay: claim → publish → settle, for ever."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Unpack

from postroom.brokers.function import FunctionBroker
from postroom.brokers.no_broker import NoBroker
from postroom.compose.brokers import as_broker, broker_for, check_broker, check_brokers, check_default
from postroom.compose.databases import open_checked_store
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.engine import Engine
from postroom.delivery.queue import EngineOptions, Queue
from postroom.relay.report import Report
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.rules.flow import FlowCounts
from postroom.rules.ordering import Order
from postroom.rules.routing import ANYTHING, Routing
from postroom.runtime import wakeup
from postroom.runtime.runnable import Runnable
from postroom.runtime.workers import worker_name
from postroom.settings import Settings, SettingsOverrides
from postroom.store.connections.reconnecting import Database
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.telemetry.events import Lifecycle, all_of, wants_counts
from postroom.telemetry.flow import counting
from postroom.telemetry.logs import with_tracebacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from postroom.brokers.function import Function
    from postroom.brokers.port import Broker
    from postroom.delivery.queue import OnDead, Policy
    from postroom.delivery.queue_worker import Part
    from postroom.delivery.stream.stream import Stream
    from postroom.relay.transactions import Scanner
    from postroom.rules.failures import Classifier
    from postroom.saga.saga import Saga
    from postroom.telemetry.events import Hook
    from postroom.twophase.two_phase_commit import TwoPhaseCommit


class Relay(Runnable[Engine]):
    """Delivers what is in the outbox. Any number of relays may run on one database.

    ``database`` is a URL; ``broker`` is a URL, a broker, or a function that takes a message (or a list of them, called
    ``messages``). ``brokers`` are for topics with a broker of their own, by pattern: ``{"payments.*": broker}``.
    They route what is in the default queue: a relay of another ``queue`` has one broker. These, and all other settings,
    which may be given by name, default to the settings in force. ``sagas`` are run in this process, and
    ``transactions``, two-phase commits whose log is in this database, are recovered, beside the brokers; without any
    broker, only they are.
    ``worker`` names this relay among the others. ``policy`` replaces ``backoff_sec`` and ``max_attempts``;
    ``classifier`` says which failures are permanent; ``on_dead(message, code, text)`` is called for each dead letter;
    ``hook`` receives every event (`postroom.telemetry.events`). Raises `InvalidSetting`.
    """

    def __init__(  # noqa: PLR0913 - what only code can give comes by its name
        self,
        database: str | None = None,
        broker: str | Broker | Function | None = None,
        *,
        brokers: Mapping[str, str | Broker | Function] | None = None,
        sagas: Sequence[Saga[Any]] = (),
        transactions: Sequence[TwoPhaseCommit] = (),
        worker: str | None = None,
        queue: str = DEFAULT_QUEUE,
        policy: Policy | None = None,
        classifier: Classifier | None = None,
        on_dead: OnDead | None = None,
        hook: Hook | None = None,
        batch: int | None = None,
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        super().__init__()
        check_broker(broker)
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(
            database=database, broker=url, brokers=check_brokers(brokers), batch=batch, **settings
        )
        check_default(broker, self._settings)
        self._brokers: Mapping[str, object] = self._settings.brokers if brokers is None else brokers
        if queue != DEFAULT_QUEUE:
            self._brokers = {}  # topics are those of the default queue
        self._sagas: Sequence[Saga[Any]] = ()
        if sagas:
            from postroom.relay.sagas import check_sagas  # which a relay without sagas need not load

            self._sagas = check_sagas(sagas, self._settings)
        self._transactions: Sequence[TwoPhaseCommit] = ()
        self._scanner: Scanner | None = None
        if transactions:
            from postroom.relay.transactions import check_transactions

            self._transactions = check_transactions(transactions, self._settings)
        self.worker = worker or worker_name(self)
        self._policy = policy or RetryPolicy.table(self._settings.backoff_sec, max_attempts=self._settings.max_attempts)
        self._classifier = classifier or DEFAULT_CLASSIFIER
        self._on_dead = on_dead
        self._broker = broker
        self._queue = queue
        self._user_hook = hook
        self.report = Report()
        self._flow = FlowCounts()

    async def run(self) -> None:
        """Deliver until `stop` is called; then finish or give back what is in flight.

        Raises `DatabaseUnreachable` or `SchemaError` if it cannot start; an outage later on does not end it.
        """
        async with self._new_run() as engine:
            await engine.run()

    async def run_once(self) -> Report:
        """Deliver what can be sent now, and return; what failed is due again later, unless its pause is zero."""
        async with self._new_run() as engine:
            await self._look_for_transactions()
            await engine.run_once()
        return self.report

    async def run_until_empty(self) -> Report:
        """Deliver until nothing is left that can be sent now, by this or by another relay."""
        async with self._new_run() as engine:
            await self._look_for_transactions()
            await engine.run_until_empty()
        return self.report

    def stop(self) -> None:
        """Claim no more; `run` ends when what is in flight is done or given back. Safe to call from any thread."""
        super().stop()

    def wake(self) -> None:
        """Look for messages now, because something was committed. Safe to call from any thread.

        An outbox in the same process does this by itself.
        """
        self._signal(Engine.wake)

    async def _look_for_transactions(self) -> None:
        """Look for those in doubt before the queues are found empty. `run` need not wait for it."""
        if self._scanner is not None:
            await self._scanner.scan()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Engine]:
        self.report = Report()
        self._flow = FlowCounts()
        hook = all_of(self.report.count, with_tracebacks(self._user_hook, self._settings.tracebacks))
        async with AsyncExitStack() as stack:
            purposes = [Purpose.SAGAS if self._sagas else Purpose.RELAY]
            purposes += [Purpose.TRANSACTIONS] if self._transactions else []
            purposes += [Purpose.CDC] if self._settings.cdc else []
            store = await open_checked_store(self._settings, *purposes)
            stack.push_async_callback(store.close)
            if self._settings.cdc:
                from postroom.relay.streaming import prepare_stream

                await prepare_stream(store)
            database = Database(store, hook)
            routing = Routing(self._brokers) if self._brokers else None
            queues = self._queues(routing, hook, stack)
            stack.push_async_callback(database.close)
            queues += await self._saga_queues(database, hook, stack)
            others = self._others(database, hook)
            if self._transactions:
                from postroom.relay.transactions import open_recovery

                queue, scanner = await open_recovery(self._transactions, database, self._settings, hook)
                queues.append(queue)
                others.append(scanner)
                self._scanner = scanner
            engine = self._engine(database, queues, routing, others, hook)
            wakeup.subscribe(self.wake)
            stack.callback(wakeup.unsubscribe, self.wake)
            yield engine

    def _engine(
        self, database: Database, queues: list[Queue], routing: Routing | None, others: list[Part], hook: Hook
    ) -> Engine:
        settings = self._settings
        options = EngineOptions(
            worker=self.worker,
            lease=settings.lock_lease_sec,
            lane_lease=settings.lane_lease_sec,
            poll_interval=settings.poll_interval_sec,
        )
        return Engine(
            database,
            queues,
            options,
            routing=routing,
            notify=settings.notify and database.store.names.dialect == "postgresql",
            listen=settings.database if settings.notify else None,
            flow=self._flow,
            others=others,
            stream=self._stream(database, options, routing, hook),
            lifecycle=lambda what: hook(Lifecycle(self.worker, what)),
        )

    def _stream(self, database: Database, options: EngineOptions, routing: Routing | None, hook: Hook) -> Stream | None:
        settings = self._settings
        if not settings.cdc or settings.database is None:
            return None
        from postroom.delivery.stream.stream import Stream  # which a relay on the table need not load

        return Stream(
            database,
            settings.database,
            Order(settings.order),
            options,
            queue_of=routing.queue_of if routing else None,
            most_wal=settings.cdc_max_wal_bytes,
            hook=hook,
        )

    def _queues(self, routing: Routing | None, hook: Hook, stack: AsyncExitStack) -> list[Queue]:
        """A queue for each broker; the stack closes the brokers that were made here."""
        if (
            (self._sagas or self._transactions)
            and routing is None
            and self._broker is None
            and self._settings.broker is None
        ):
            return []
        if routing is None:
            broker, is_ours = as_broker(self._broker, self._settings, self._classifier)
            opened = {self._queue: (broker, is_ours)}
        else:
            opened = {
                queue: broker_for(
                    pattern,
                    self._brokers.get(pattern, self._broker if pattern == ANYTHING else None),
                    self._settings,
                    self._classifier,
                )
                for pattern, queue in routing.queues.items()
            }
        for broker, is_ours in opened.values():
            if is_ours:
                stack.push_async_callback(broker.close)
            if isinstance(broker, FunctionBroker):
                broker.raised = hook
        return [self._queue_to(broker, queue, routing, hook) for queue, (broker, _) in opened.items()]

    def _queue_to(self, broker: Broker, queue: str, routing: Routing | None, hook: Hook) -> Queue:
        settings = self._settings
        return Queue(
            name=queue,
            destination=PublishToBroker(broker),
            timeout=settings.broker_timeout_ms / 1000,
            policy=self._policy,
            classifier=self._classifier,
            order=Order(settings.order),
            batch=settings.batch,
            concurrency=settings.concurrency,
            most_bytes=settings.max_in_flight_bytes,
            dedup=settings.dedup,
            ledger_keep=settings.idempotency_keep_sec,
            on_dead=self._on_dead,
            hook=all_of(hook, counting(self._flow, queue)),
            queue_of=routing.queue_of if routing else None,
            has_destination=not isinstance(broker, NoBroker),
        )

    async def _saga_queues(self, database: Database, hook: Hook, stack: AsyncExitStack) -> list[Queue]:
        if not self._sagas:
            return []
        from postroom.relay.sagas import open_saga_queues

        return await open_saga_queues(
            self._sagas,
            database,
            self._settings,
            stack,
            worker=self.worker,
            classifier=self._classifier,
            on_dead=self._on_dead,
            hook=hook,
        )

    def _others(self, database: Database, hook: Hook) -> list[Part]:
        """What runs beside the queues, if it is asked for. A relay that does not count or clean need not load it."""
        settings, names = self._settings, database.store.names
        others: list[Part] = []
        if wants_counts(hook):
            from postroom.relay.backlog import BacklogCounter
            from postroom.store.admin.backlog import BacklogReader
            from postroom.store.admin.sagas import Sagas

            reader = BacklogReader(names, Order(settings.order))
            others.append(BacklogCounter(database.connect(), reader, hook, Sagas(names) if self._sagas else None))
        if settings.cleanup_every_sec is not None:
            from postroom.relay.cleaning import TIME_LIMIT, Cleaning

            connection = database.connect(TIME_LIMIT)
            others.append(Cleaning(connection, names, settings, settings.cleanup_every_sec, hook))
        return others
