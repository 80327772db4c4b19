"""Consumer: receive → inbox → handler → acknowledge."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.compose.brokers import as_source
from postroom.compose.databases import open_checked_store
from postroom.consumer.attempts import Attempts
from postroom.consumer.handlers import handler_of
from postroom.consumer.intake import Intake
from postroom.consumer.outcomes import Report
from postroom.consumer.parked import ParkedMessages
from postroom.consumer.retries import Retries
from postroom.consumer.run import Announcement, ConsumerRun
from postroom.consumer.runner import GRACE, HandlerRunner
from postroom.consumer.transactions import Transactions
from postroom.consumer.worker import SequentialWorker
from postroom.errors import InvalidSetting
from postroom.inbox import Inbox
from postroom.relay import Relay
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.ordering import Order
from postroom.rules.routing import place_of_source, queue_of_consumer
from postroom.runtime.background import Background
from postroom.runtime.error_groups import first_error_only
from postroom.runtime.workers import worker_name
from postroom.settings import Settings, SettingsOverrides
from postroom.store.connections.reconnecting import Database
from postroom.store.outbox.parking import Parking
from postroom.store.outbox.workers import Workers
from postroom.store.schema.purposes import Purpose
from postroom.telemetry.events import Hook, Reachability, all_of, changes_only
from postroom.telemetry.logs import with_tracebacks
from postroom.telemetry.traces import tracer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from postroom.consumer.handlers import Function, Handler
    from postroom.consumer.outcomes import Fate
    from postroom.consumer.worker import Done
    from postroom.incoming import Incoming
    from postroom.sources.port import Source
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.connections.stores import ConnectionFactory

F = TypeVar("F", bound="Function")

ATTEMPTS = 3
TIMEOUT = 30.0
DELAYS = (1.0, 5.0, 10.0)
BATCH = 100
HANDLERS = "handlers"
"""What is reported as unreachable when no thread is free for handlers."""


class Consumer(Background):
    """Receives messages and handles each once. Any number of processes may run the same consumer.

    ``name`` identifies the consumer in the inbox and at the broker: it is the durable, group or queue, unless the URL
    names another. ``broker`` is a URL or a source; ``database`` is the service's own, with Postroom's tables. Both,
    and all other settings, default to the settings in force. Without a broker, or with ``http:``, messages come only
    through `handle`, as from the receiver of webhooks.

    ``transactions`` opens what handlers run in: an SQLAlchemy engine or sessionmaker, sync or async, or a function that
    returns a context manager, whose end commits. By default, handlers get an SQLAlchemy connection to ``database``.
    At most ``batch`` messages are received at a time; ``concurrency`` of them are handled at the same time, those of
    one key one after another. ``classifier`` decides which failures are permanent, ``hook`` receives every event
    (`postroom.telemetry.events`), ``worker`` names this process among the others. Raises `InvalidSetting`.
    """

    def __init__(
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
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(database=database, broker=url, **settings)
        self._inbox = Inbox(name, schema=self._settings.schema, table_prefix=self._settings.table_prefix)
        self.name = self._inbox.consumer
        if batch < 1:
            raise InvalidSetting(f"batch = {batch!r} is not valid: give 1 or more")
        self._broker = broker
        self._transactions = Transactions(transactions, self._settings.database)
        self._batch = batch
        self._classifier = classifier or DEFAULT_CLASSIFIER
        self._user_hook = hook
        self.worker = worker or worker_name(self)
        self._handlers: list[Handler] = []
        self.report = Report()
        self._stop_asked = False
        self._running: dict[ConsumerRun, asyncio.AbstractEventLoop] = {}

    def handler(
        self,
        topic: str,
        *,
        type: str | None = None,
        attempts: int = ATTEMPTS,
        delays: Sequence[float] = DELAYS,
        timeout: float = TIMEOUT,
        policy: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Make a function the handler of a topic, or of all topics that fit a pattern such as ``orders.*``.

        It takes ``(connection, message)``, or ``messages`` to get several in one transaction, or leaves the connection
        out; it may be sync or async. ``type`` narrows it to one type of event. If several handlers fit a message, the
        one registered first gets it. A failed call is retried after ``delays`` (seconds; the last repeats), up to
        ``attempts`` calls in all; a call that takes longer than ``timeout`` has failed. ``policy`` replaces attempts
        and delays. Raises `InvalidSetting`.
        """
        if not isinstance(topic, str):
            raise InvalidSetting(
                f"the handler's topic is {topic!r}: write @consumer.handler(topic) with one topic, or a pattern as "
                "orders.*; for several, repeat the line"
            )
        if not topic:
            raise InvalidSetting("the handler's topic is empty: give a topic, or a pattern as orders.* or *")
        try:
            tries = policy or RetryPolicy.table(delays, max_attempts=attempts)
        except ValueError as error:
            raise InvalidSetting(f"the handler of {topic!r}: {error}") from None

        def register(function: F) -> F:
            self._handlers.append(handler_of(function, topic, type, tries, timeout))
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
        async with self._opened() as run:
            await run.work()

    async def run_once(self) -> Report:
        """Handle what the broker has at hand and what is parked and due, and return.

        Raises what `run` raises, and `BrokerUnavailable`.
        """
        async with self._opened(once=True) as run:
            await run.work_once()
        return self.report

    async def handle(self, message: Incoming) -> Fate:
        """Handle one message as if it had been received. The consumer must be running.

        Returns what became of it; ``undone`` if the consumer stops first.
        """
        for run in self._running:
            return await run.intake.handle(message)
        raise InvalidSetting("the consumer is not running: use `async with consumer:` or `await consumer.run()`")

    def stop(self) -> None:
        """Receive no more; `run` ends when what is begun is done. Safe from any thread."""
        self._stop_asked = True
        for run, loop in tuple(self._running.items()):
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(run.stop)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and has not ended yet."""
        return self._stop_asked

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._opened() as run:
            started.set()
            await run.work()

    @asynccontextmanager
    async def _opened(self, *, once: bool = False) -> AsyncIterator[ConsumerRun]:
        """A run with everything that it needs, opened and closed again."""
        if not self._handlers:
            raise InvalidSetting(f"the consumer {self.name!r} has no handler: add one with @consumer.handler(topic)")
        self.report = Report()
        hook = changes_only(all_of(self.report.count, with_tracebacks(self._user_hook, self._settings.tracebacks)))
        async with AsyncExitStack() as stack:
            store = await open_checked_store(self._settings, Purpose.CONSUMER)
            stack.push_async_callback(store.close)
            source, is_ours = as_source(self._broker, self._settings, self.name, self.topics)
            if source is not None and is_ours:
                stack.push_async_callback(source.close)
            stack.push_async_callback(self._transactions.close)
            connection = Database(store, hook).connect()
            stack.push_async_callback(connection.close)
            runner = self._runner(connection, hook)
            stack.callback(runner.close)
            await runner.check(self._handlers)
            run = self._assembled(store, connection, source, runner, hook, once=once)
            self._running[run] = asyncio.get_running_loop()
            stack.callback(self._ended, run)
            if self._stop_asked:
                run.stop()
            with first_error_only():
                yield run

    def _runner(self, connection: ReconnectingConnection, hook: Hook) -> HandlerRunner:
        queue = queue_of_consumer(self.name)
        return HandlerRunner(
            self._inbox,
            self._transactions,
            2 * self._settings.concurrency,
            connection.answers,
            lambda stuck: hook(Reachability(HANDLERS, stuck is None, stuck or "", queue)),
            tracer_of(self._user_hook),
        )

    def _assembled(
        self,
        store: ConnectionFactory,
        connection: ReconnectingConnection,
        source: Source | None,
        runner: HandlerRunner,
        hook: Hook,
        *,
        once: bool,
    ) -> ConsumerRun:
        """The parts of a run, put together. One that is to end by itself does not wait for handlers that hang."""
        stopping = asyncio.Event()
        attempts = Attempts(self.name, self._handlers, runner, self._classifier, hook)
        queue = queue_of_consumer(self.name)
        relay = self._relay(Retries(self.name, attempts), queue, hook)
        parking = Parking(store.names, queue, Order(self._settings.order))
        parked = ParkedMessages(self.name, connection, parking, relay.wake)

        def give_up_if_hung() -> None:
            if once and runner.all_hung:
                stopping.set()

        def new_worker(done: Done) -> SequentialWorker:
            return SequentialWorker(
                batch=self._batch,
                attempts=attempts,
                parked=parked,
                stopping=stopping,
                on_outage=give_up_if_hung,
                done=done,
            )

        concurrency = self._settings.concurrency
        return ConsumerRun(
            self.name,
            self.worker,
            intake=Intake(
                source,
                new_worker,
                concurrency=concurrency,
                capacity=max(self._batch, concurrency),
                parked=parked,
                stopping=stopping,
                hook=hook,
            ),
            runner=runner,
            relay=relay,
            announcement=Announcement(Workers(store.names, place_of_source(self.name)), connection, self.worker),
            stopping=stopping,
            hook=hook,
        )

    def _relay(self, retries: Retries, queue: str, hook: Hook) -> Relay:
        """A relay of what is parked, to the handlers."""
        longest = max(handler.timeout for handler in self._handlers)
        return Relay(
            self._settings.database,
            retries.deliver,
            worker=self.worker,
            queue=queue,
            policy=retries.policy_for,
            classifier=self._classifier,
            hook=retries.listen(hook),
            schema=self._settings.schema,
            table_prefix=self._settings.table_prefix,
            concurrency=self._settings.concurrency,
            poll_interval_sec=self._settings.poll_interval_sec,
            lock_lease_sec=self._settings.lock_lease_sec,
            lane_lease_sec=self._settings.lane_lease_sec,
            order=self._settings.order,
            batch=self._batch,
            broker_timeout_ms=1000 * (longest + 1 + GRACE),
            dedup=False,
            notify=False,
        )

    def _ended(self, run: ConsumerRun) -> None:
        del self._running[run]
        if not self._running:
            self._stop_asked = False
