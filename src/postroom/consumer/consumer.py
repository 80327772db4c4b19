"""Consumer: receive → inbox → handler → acknowledge."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.compose.brokers import as_source
from postroom.compose.databases import open_checked_store
from postroom.compose.transactions import Transactions
from postroom.consumer.handler_attempts import HandlerAttempts
from postroom.consumer.handler_destination import HANDLERS, HandlerDestination, consumer_events
from postroom.consumer.handlers import handler_of
from postroom.consumer.intake import Intake
from postroom.consumer.outcomes import Report
from postroom.consumer.parked import ParkedMessages
from postroom.consumer.run import Announcement, ConsumerRun
from postroom.consumer.runner import HandlerRunner
from postroom.consumer.worker import SequentialWorker
from postroom.delivery.engine import Engine
from postroom.delivery.queue import EngineOptions, Queue
from postroom.errors import InvalidSetting
from postroom.events import check_serializer
from postroom.inbox import Inbox
from postroom.relay.cleaning import TIME_LIMIT, Cleaning
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.flow import FlowCounts
from postroom.rules.ordering import Order
from postroom.rules.receiving import portions
from postroom.rules.routing import place_of_source, queue_of_consumer
from postroom.runtime.calls import GRACE
from postroom.runtime.runnable import Runnable
from postroom.runtime.workers import worker_name
from postroom.settings import Settings, SettingsOverrides
from postroom.store.connections.reconnecting import Database
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.parking import Parking
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.schema.purposes import Purpose
from postroom.telemetry.events import Hook, Reachability, all_of, changes_only
from postroom.telemetry.flow import counting
from postroom.telemetry.logs import with_tracebacks
from postroom.telemetry.traces import tracer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from postroom.consumer.handlers import Function, Handler
    from postroom.consumer.outcomes import Fate
    from postroom.consumer.worker import Done
    from postroom.incoming import Incoming
    from postroom.serializing import Serializer
    from postroom.sources.port import Source

F = TypeVar("F", bound="Function")

ATTEMPTS = 3
TIMEOUT = 30.0
DELAYS = (1.0, 5.0, 10.0)
BATCH = 100
KEPT = 5
"""Connections for handlers that stay open, at least: parked messages are retried beside those that are received."""
_RELAYS = {
    "max_attempts": "how often a handler is tried is its own: write @consumer.handler(topic, attempts=…)",
    "backoff_sec": "the pauses between tries are the handler's own: write @consumer.handler(topic, delays=…)",
    "broker_timeout_ms": "a call's time limit is the handler's own: write @consumer.handler(topic, timeout=…)",
}
"""Settings of relays that one may take for a consumer's. In the environment, they are there for both."""


class Consumer(Runnable[ConsumerRun]):
    """Receives messages and handles each once. Any number of processes may run the same consumer.

    ``name`` identifies the consumer in the inbox and at the broker: it is the durable, group or queue, unless the URL
    names another. ``broker`` is a URL or a source; ``database`` is the service's own, with Postroom's tables. Both,
    and all other settings, default to the settings in force. Without a broker, or with ``http:``, messages come only
    through `handle`, as from the receiver of webhooks.

    ``transactions`` opens what handlers run in: an SQLAlchemy engine or sessionmaker, sync or async, or a function that
    returns a context manager, whose end commits. By default, handlers get an SQLAlchemy connection to ``database``.
    At most ``batch`` messages are received at a time; ``concurrency`` of them are handled at the same time, those of
    one key one after another. ``classifier`` decides which failures are permanent, ``hook`` receives every event
    (`postroom.telemetry.events`), ``worker`` names this process among the others. ``serializer`` decodes the
    events whose classes declare none; without it, they are JSON. Raises `InvalidSetting`.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        name: str,
        broker: str | Source | object | None = None,
        *,
        database: str | None = None,
        transactions: object = None,
        batch: int = BATCH,
        classifier: Classifier | None = None,
        hook: Hook | None = None,
        worker: str | None = None,
        serializer: Serializer | None = None,
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        super().__init__()
        _refuse_the_relays(settings)
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(database=database, broker=url, **settings)
        self._inbox = Inbox(name, schema=self._settings.schema, table_prefix=self._settings.table_prefix)
        self.name = self._inbox.consumer
        self._queue = queue_of_consumer(self.name)
        if batch < 1:
            raise InvalidSetting(f"batch = {batch!r} is not valid: give 1 or more")
        self._broker = broker
        kept = max(KEPT, self._settings.concurrency)
        self._transactions = Transactions(transactions, self._settings.database, kept=kept)
        self._batch = batch
        self._classifier = classifier or DEFAULT_CLASSIFIER
        self._user_hook = hook
        self.worker = worker or worker_name(self)
        check_serializer(serializer)
        self._serializer = serializer
        self._handlers: list[Handler] = []
        self.report = Report()
        self._flow = FlowCounts()

    def handler(
        self,
        topic: str | None = None,
        *,
        type: str | None = None,
        attempts: int = ATTEMPTS,
        delays: Sequence[float] = DELAYS,
        timeout: float = TIMEOUT,
        policy: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Make a function the handler of a topic, or of all topics that fit a pattern such as ``orders.*``.

        Without a topic, the function takes an event: a parameter is annotated with a class that is decorated with
        `event`, which says topic and type, and to which messages are decoded.

        It takes ``(connection, message)``, or ``messages`` to get several in one transaction, or leaves the connection
        out; it may be sync or async. ``type`` narrows it to one type of event. If several handlers fit a message, the
        one registered first gets it. A failed call is retried after ``delays`` (seconds; the last repeats), up to
        ``attempts`` calls in all; a call that takes longer than ``timeout`` has failed. ``policy`` replaces attempts
        and delays. Raises `InvalidSetting`.
        """
        if topic is not None and not isinstance(topic, str):
            raise InvalidSetting(
                f"the handler's topic is {topic!r}: write @consumer.handler(topic) with one topic, or a pattern "
                "such as orders.*; for several, repeat the line"
            )
        if topic == "":
            raise InvalidSetting("the handler's topic is empty: give a topic, or a pattern such as orders.* or *")
        try:
            tries = policy or RetryPolicy.table(delays, max_attempts=attempts)
        except ValueError as error:
            raise InvalidSetting(f"the handler of {topic!r}: {error}") from None

        def register(function: F) -> F:
            self._handlers.append(handler_of(function, topic, type, tries, timeout, self._serializer))
            return function

        return register

    def add_hook(self, hook: Hook) -> None:
        """Add a function that receives every event, from the next run on."""
        self._user_hook = all_of(self._user_hook, hook)

    @property
    def has_broker(self) -> bool:
        """Whether it knows where to receive from."""
        return self._broker is not None or self._settings.broker is not None

    @property
    def topics(self) -> list[str]:
        """The topics and patterns that have handlers."""
        return list(dict.fromkeys(handler.topic for handler in self._handlers))

    async def run(self) -> None:
        """Receive and handle until `stop` is called; then finish what is begun, and give back the rest.

        Raises `DatabaseUnreachable`, `SchemaError` or `InvalidSetting` if it cannot start. Later outages of the broker
        or of the database do not end it.
        """
        async with self._new_run() as run:
            await run.run()

    async def run_once(self) -> Report:
        """Handle what the broker has at hand and what is parked and due, and return.

        Raises what `run` raises, and `BrokerUnavailable`.
        """
        async with self._new_run() as run:
            await run.run_once()
        return self.report

    async def handle(self, message: Incoming) -> Fate:
        """Handle one message as if it had been received. The consumer must be running.

        Returns what became of it; ``undone`` if the consumer stops first.
        """
        for run in self._active:
            return await run.intake.handle(message)
        raise InvalidSetting("the consumer is not running: use `async with consumer:` or `await consumer.run()`")

    def stop(self) -> None:
        """Receive no more; `run` ends when what is begun is done. Safe to call from any thread."""
        super().stop()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ConsumerRun]:
        if not self._handlers:
            raise InvalidSetting(f"the consumer {self.name!r} has no handler: add one with @consumer.handler(topic)")
        self.report = Report()
        self._flow = FlowCounts()
        counted = counting(self._flow, self._queue)
        hook = changes_only(
            all_of(self.report.count, counted, with_tracebacks(self._user_hook, self._settings.tracebacks))
        )
        async with AsyncExitStack() as stack:
            store = await open_checked_store(self._settings, Purpose.CONSUMER)
            stack.push_async_callback(store.close)
            source, is_ours = as_source(self._broker, self._settings, self.name, self.topics)
            if source is not None and is_ours:
                stack.push_async_callback(source.close)
            stack.push_async_callback(self._transactions.close)
            database = Database(store, hook)
            stack.push_async_callback(database.close)
            connections = ConnectionSet.small(database)
            runner = self._runner(connections, hook)
            stack.callback(runner.close)
            await runner.check(self._handlers)
            yield self._assembled(database, connections, source, runner, hook)

    def _runner(self, connections: ConnectionSet, hook: Hook) -> HandlerRunner:
        return HandlerRunner(
            self._inbox,
            self._transactions,
            2 * self._settings.concurrency,
            connections.settlements.answers,
            lambda stuck: hook(Reachability(HANDLERS, stuck is None, stuck or "", self._queue)),
            tracer_of(self._user_hook),
        )

    def _assembled(
        self,
        database: Database,
        connections: ConnectionSet,
        source: Source | None,
        runner: HandlerRunner,
        hook: Hook,
    ) -> ConsumerRun:
        """The parts of a run, put together."""
        names, stopping = database.store.names, asyncio.Event()
        attempts = HandlerAttempts(self.name, self._handlers, runner, self._classifier, hook)
        parking = Parking(names, self._queue, Order(self._settings.order))
        engine = self._engine(database, connections, attempts, parking, hook)
        parked = ParkedMessages(self.name, connections.settlements, parking, engine.wake)

        def new_worker(done: Done) -> SequentialWorker:
            return SequentialWorker(batch=self._batch, attempts=attempts, parked=parked, stopping=stopping, done=done)

        concurrency = self._settings.concurrency
        in_batches = all(handler.takes_batch for handler in self._handlers)
        return ConsumerRun(
            self.name,
            self.worker,
            intake=Intake(
                source,
                new_worker,
                concurrency=concurrency,
                portions=portions(self._batch, concurrency, in_batches=in_batches),
                parked=parked,
                stopping=stopping,
                hook=hook,
            ),
            runner=runner,
            engine=engine,
            announcement=Announcement(Workers(names, place_of_source(self.name)), connections.heartbeats, self.worker),
            stopping=stopping,
            hook=hook,
        )

    def _engine(
        self, database: Database, connections: ConnectionSet, attempts: HandlerAttempts, parking: Parking, hook: Hook
    ) -> Engine:
        """An engine that delivers what is parked to the handlers."""
        settings = self._settings
        order, concurrency = Order(settings.order), settings.concurrency
        settlements = QueueStore(database.store.names, self._queue, order).settlements
        destination = HandlerDestination(attempts, settlements, parking, concurrency)
        queue = Queue(
            name=self._queue,
            destination=destination,
            timeout=max(handler.timeout for handler in self._handlers) + 1 + GRACE,
            policy=destination.policy_for,
            classifier=self._classifier,
            order=order,
            batch=self._batch,
            concurrency=concurrency,
            most_bytes=settings.max_in_flight_bytes,
            hook=consumer_events(self.name, hook),
        )
        options = EngineOptions(
            worker=self.worker,
            lease=settings.lock_lease_sec,
            lane_lease=settings.lane_lease_sec,
            poll_interval=settings.poll_interval_sec,
        )
        others = self._cleaning(database, hook)
        return Engine(database, [queue], options, connections=connections, flow=self._flow, others=others)

    def _cleaning(self, database: Database, hook: Hook) -> list[Cleaning]:
        """What removes old messages and marks, where the settings ask for it."""
        every = self._settings.cleanup_every_sec
        if every is None:
            return []
        return [Cleaning(database.connect(TIME_LIMIT), database.store.names, self._settings, every, hook)]


def _refuse_the_relays(settings: Mapping[str, object]) -> None:
    for name, remedy in _RELAYS.items():
        if settings.get(name) is not None:
            raise InvalidSetting(f"{name} is a setting of relays: {remedy}")
