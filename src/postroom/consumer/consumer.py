"""Consumer: receive → inbox → handler → acknowledge."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar, Unpack

from postroom.compose import as_source, open_relay_store
from postroom.consumer.handlers import handler_of
from postroom.consumer.office import Office
from postroom.consumer.outcomes import Report
from postroom.consumer.presence import Presence
from postroom.consumer.retries import Retries
from postroom.consumer.running import GRACE, Runner
from postroom.consumer.shift import Shift
from postroom.consumer.transactions import Transactions
from postroom.errors import InvalidSetting
from postroom.inbox import Inbox
from postroom.relay import Relay
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.ordering import Order
from postroom.rules.routing import place_of_source, queue_of_consumer
from postroom.runtime.background import Background
from postroom.runtime.error_groups import first_error_only
from postroom.settings import Settings, SettingsOverrides
from postroom.store.connections.reconnecting import Database
from postroom.store.outbox.parking import Parking
from postroom.store.outbox.workers import Workers
from postroom.telemetry.events import Hook, Reachability, all_of, changes_only
from postroom.telemetry.logs import with_tracebacks
from postroom.telemetry.traces import tracer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from postroom.consumer.handlers import Function, Handler
    from postroom.consumer.outcomes import Fate
    from postroom.incoming import Incoming
    from postroom.sources.port import Source

F = TypeVar("F", bound="Function")

ATTEMPTS = 3
TIMEOUT = 30.0
DELAYS = (1.0, 5.0, 10.0)
BATCH = 100
HANDLERS = "handlers"
"""What is said to be unreachable when no thread is free for them."""


class Consumer(Background):
    """Receives messages, and has each handled once. Any number of processes may run the same consumer.

    ``name`` is what the inbox knows this consumer by, and the broker: its durable, group or queue, unless the URL says
    otherwise. ``broker`` is a URL, or a source; ``database`` is the service's own, where Postroom's tables are. Both,
    and all other settings, default to the settings in force. Without a broker, or with ``http:``, only `handle` gives
    it messages, as the receiver of webhooks does.

    ``transactions`` opens what handlers run in: an SQLAlchemy engine or sessionmaker, sync or async, or a function that
    returns a context manager, whose end commits; without it, handlers get an SQLAlchemy connection to ``database``.
    ``batch`` messages at most are taken in at a time; ``concurrency`` of them are handled at the same time, those of
    one key one after another. ``classifier`` says which failures are permanent, ``hook`` is told of everything
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
        self.worker = worker or f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        self._handlers: list[Handler] = []
        self.report = Report()
        self._stop_asked = False
        self._running: dict[Shift, asyncio.AbstractEventLoop] = {}

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
        """Make a function the handler of a topic, or of the topics that fit a pattern: ``orders.*``.

        It takes ``(connection, message)``, or ``messages`` for several in one transaction, or leaves the connection
        out; it may be sync or async. ``type`` narrows it to one type of event. Of several handlers that fit, the first
        that was registered has the message. A failed call is tried again after ``delays`` (seconds; the last repeats),
        ``attempts`` times in all; one that takes longer than ``timeout`` has failed. ``policy`` takes the place of
        attempts and delays. Raises `InvalidSetting`.
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
        """Have another function told of everything, from the next run on."""
        self._user_hook = all_of(self._user_hook, hook)

    @property
    def has_broker(self) -> bool:
        """Whether it was told where to receive from."""
        return self._broker is not None or self._settings.broker is not None

    @property
    def topics(self) -> list[str]:
        """The topics and patterns that there are handlers for."""
        return list(dict.fromkeys(handler.topic for handler in self._handlers))

    async def run(self) -> None:
        """Receive and handle until `stop` is called; then finish what is begun, and give back the rest.

        Raises `DatabaseUnreachable`, `SchemaError` or `InvalidSetting` if it cannot start; an outage of the broker or
        of the database later on does not end it.
        """
        async with self._shift() as shift:
            await shift.work()

    async def run_once(self) -> Report:
        """Handle what the broker has at hand and what is parked and due, and return.

        Raises as `run` does, and `BrokerUnavailable`.
        """
        async with self._shift() as shift:
            await shift.work_once()
        return self.report

    async def handle(self, message: Incoming) -> Fate:
        """Handle one message, as if it had been received; the consumer must be running.

        Returns what became of it; ``undone`` where the consumer stops first.
        """
        for shift in self._running:
            return await shift.reception.handle(message)
        raise InvalidSetting("the consumer is not running: use `async with consumer:` or `await consumer.run()`")

    def stop(self) -> None:
        """Receive no more; `run` ends when what is begun is done. Safe from any thread."""
        self._stop_asked = True
        for shift, loop in tuple(self._running.items()):
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(shift.stop)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and has not ended yet."""
        return self._stop_asked

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._shift() as shift:
            started.set()
            await shift.work()

    @asynccontextmanager
    async def _shift(self) -> AsyncIterator[Shift]:
        """Everything that a run needs, opened and closed again."""
        if not self._handlers:
            raise InvalidSetting(f"the consumer {self.name!r} has no handler: add one with @consumer.handler(topic)")
        self.report = Report()
        hook = changes_only(all_of(self.report.count, with_tracebacks(self._user_hook, self._settings.tracebacks)))
        concurrency = self._settings.concurrency
        async with AsyncExitStack() as stack:
            store = await open_relay_store(self._settings, "consumer")
            stack.push_async_callback(store.close)
            source, is_ours = as_source(self._broker, self._settings, self.name, self.topics)
            if source is not None and is_ours:
                stack.push_async_callback(source.close)
            stack.push_async_callback(self._transactions.close)
            line = Database(store, hook).line()
            stack.push_async_callback(line.close)
            queue = queue_of_consumer(self.name)
            runner = Runner(
                self._inbox,
                self._transactions,
                2 * concurrency,
                line.answers,
                lambda stuck: hook(Reachability(HANDLERS, stuck is None, stuck or "", queue)),
                tracer_of(self._user_hook),
            )
            stack.callback(runner.close)
            await runner.check(self._handlers)
            retries = Retries(self.name, self._handlers, runner, self._classifier, hook)
            relay = self._relay(retries, queue, hook)
            office = Office(
                name=self.name,
                handlers=self._handlers,
                batch=self._batch,
                classifier=self._classifier,
                hook=hook,
                runner=runner,
                line=line,
                parking=Parking(store.names, queue, Order(self._settings.order)),
                wake=relay.wake,
            )
            presence = Presence(Workers(store.names, place_of_source(self.name)), line, self.worker)
            shift = Shift(office, source, relay, presence, concurrency)
            self._running[shift] = asyncio.get_running_loop()
            stack.callback(self._off_duty, shift)
            if self._stop_asked:
                shift.stop()
            with first_error_only():
                yield shift

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

    def _off_duty(self, shift: Shift) -> None:
        del self._running[shift]
        if not self._running:
            self._stop_asked = False
