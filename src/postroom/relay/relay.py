"""Relay: claim → publish → settle, for ever."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Unpack

from postroom.brokers.function import FunctionBroker
from postroom.compose import as_broker, broker_for, check_broker, check_brokers, check_default, open_relay_store
from postroom.delivery.engine import Crew
from postroom.delivery.options import options_of
from postroom.relay.assembly import hired
from postroom.relay.report import Report
from postroom.rules.routing import ANYTHING, Routing
from postroom.runtime import wakeup
from postroom.runtime.background import Background
from postroom.runtime.error_groups import first_error_only
from postroom.settings import Settings, SettingsOverrides
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.telemetry.events import all_of
from postroom.telemetry.logs import with_tracebacks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from postroom.brokers.function import Function
    from postroom.brokers.port import Broker
    from postroom.delivery.options import OnDead, Policy
    from postroom.rules.failures import Classifier
    from postroom.telemetry.events import Hook


class Relay(Background):
    """Delivers what is in the outbox. Any number of relays may run on one database.

    ``database`` is a URL; ``broker`` is a URL, a broker, or a function that takes a message (or a list of them, called
    ``messages``). ``brokers`` are those of topics with a broker of their own, by patterns: ``{"payments.*": broker}``.
    They sort what is in the default queue: a relay of another ``queue`` has one broker. These, and all other settings,
    which may be given by their names, default to the settings in force.
    ``worker`` names this relay among the others. ``policy`` takes the place of ``backoff_sec`` and ``max_attempts``;
    ``classifier`` says which failures are permanent; ``on_dead(message, code, text)`` is told of dead letters;
    ``hook`` of everything (`postroom.telemetry.events`). Raises `InvalidSetting`.
    """

    def __init__(  # noqa: PLR0913 - what only code can give comes by its name
        self,
        database: str | None = None,
        broker: str | Broker | Function | None = None,
        *,
        brokers: Mapping[str, str | Broker | Function] | None = None,
        worker: str | None = None,
        queue: str = DEFAULT_QUEUE,
        policy: Policy | None = None,
        classifier: Classifier | None = None,
        on_dead: OnDead | None = None,
        hook: Hook | None = None,
        batch: int | None = None,
        **settings: Unpack[SettingsOverrides],
    ) -> None:
        check_broker(broker)
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(
            database=database, broker=url, brokers=check_brokers(brokers), batch=batch, **settings
        )
        check_default(broker, self._settings)
        self._brokers: Mapping[str, object] = self._settings.brokers if brokers is None else brokers
        if queue != DEFAULT_QUEUE:
            self._brokers = {}  # topics are those of the default queue
        self.worker = worker or f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        self._options = options_of(self._settings, self.worker, policy, classifier, on_dead)
        self._broker = broker
        self._queue = queue
        self._user_hook = hook
        self.report = Report()
        self._stop_asked = False
        self._running: dict[Crew, asyncio.AbstractEventLoop] = {}

    async def run(self) -> None:
        """Deliver until `stop` is called; then finish or give back what is in flight.

        Raises `DatabaseUnreachable` or `SchemaError` if it cannot start; an outage later on does not end it.
        """
        async with self._crew() as crew:
            await crew.work()

    async def run_once(self) -> Report:
        """Deliver what could be sent now, and return; what failed is due again later, unless its pause is zero."""
        async with self._crew() as crew:
            await crew.work_once()
        return self.report

    async def run_until_empty(self) -> Report:
        """Deliver until nothing is left that could be sent now, by this or by another relay."""
        async with self._crew() as crew:
            await crew.work_until_empty()
        return self.report

    def stop(self) -> None:
        """Claim no more; `run` ends when what is in flight is done or given back. Safe from any thread."""
        self._stop_asked = True
        self._signal(Crew.stop)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and has not ended yet."""
        return self._stop_asked

    def wake(self) -> None:
        """Say that something was committed, to have it sent at once. Safe from any thread.

        An outbox of the same process does it by itself.
        """
        self._signal(Crew.wake)

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._crew() as crew:
            started.set()
            await crew.work()

    def _signal(self, action: Callable[[Crew], None]) -> None:
        for crew, loop in tuple(self._running.items()):
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(action, crew)

    @asynccontextmanager
    async def _crew(self) -> AsyncIterator[Crew]:
        """Everything that a run needs, opened and closed again."""
        self.report = Report()
        hook = all_of(self.report.count, with_tracebacks(self._user_hook, self._settings.tracebacks))
        async with AsyncExitStack() as stack:
            store = await open_relay_store(self._settings)
            stack.push_async_callback(store.close)
            routing = Routing(self._brokers) if self._brokers else None
            brokers = self._opened_brokers(routing, stack)
            _listen_to_functions(brokers.values(), hook)
            crew = hired(self._settings, self._options, store, brokers, routing, hook)
            stack.push_async_callback(crew.close)
            self._running[crew] = asyncio.get_running_loop()
            stack.callback(self._off_duty, crew)
            wakeup.subscribe(self.wake)
            stack.callback(wakeup.unsubscribe, self.wake)
            if self._stop_asked:
                crew.stop()
            with first_error_only():
                yield crew

    def _opened_brokers(self, routing: Routing | None, stack: AsyncExitStack) -> dict[str, Broker]:
        """Each queue's broker; the stack closes those that were made here."""
        opened: dict[str, Broker] = {}
        classifier = self._options.classifier
        for pattern, queue in {ANYTHING: self._queue}.items() if routing is None else routing.queues.items():
            given = self._brokers.get(pattern, self._broker if pattern == ANYTHING else None)
            if routing is None:
                broker, is_ours = as_broker(given, self._settings, classifier)
            else:
                broker, is_ours = broker_for(pattern, given, self._settings, classifier)
            if is_ours:
                stack.push_async_callback(broker.close)
            opened[queue] = broker
        return opened

    def _off_duty(self, crew: Crew) -> None:
        del self._running[crew]
        if not self._running:
            self._stop_asked = False


def _listen_to_functions(brokers: Iterable[Broker], hook: Hook) -> None:
    """Have the hook told of what the user's functions raise, where they stand for brokers."""
    for broker in brokers:
        if isinstance(broker, FunctionBroker):
            broker.raised = hook
