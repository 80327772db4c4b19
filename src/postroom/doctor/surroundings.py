"""What checks look at: the settings, the database and the brokers. Facts that several checks need are read once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from postroom.brokers.schemes import BRIDGES, CLIENTS, load
from postroom.compose.databases import open_store
from postroom.doctor.answers import answer_within, answers_within
from postroom.errors import DatabaseUnreachable, DriverMissing, InvalidSetting, SchemaMissing
from postroom.rules.ordering import Order
from postroom.rules.routing import ANYTHING, best_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sqlalchemy import Connection

    from postroom.brokers.inspection.port import Inspector
    from postroom.rules.checks.brokers import BrokerFacts, Certificate
    from postroom.rules.checks.flow import Waiting
    from postroom.settings import Settings
    from postroom.store.admin.inspection.server import Server
    from postroom.store.admin.inspection.traffic import DeadLetters, Traffic
    from postroom.store.admin.status import Worker
    from postroom.store.connections.stores import BlockingStore
    from postroom.store.schema.purposes import Purpose
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

T = TypeVar("T")
DATABASE = "database"
TOPICS_SHARE, BROKER_SHARE, BROKERS_SHARE = 0.2, 0.6, 0.7
"""The shares of a check's time for reading topics, that a broker gets to answer, and that all brokers get."""


class NotChecked(Exception):
    """The check does not apply, or something that it needs is not there."""


class Answer(NamedTuple):
    """How the database answered for the first time."""

    version: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokerSeat:
    """A broker of the settings, and the topics that go to it."""

    pattern: str
    scheme: str
    inspector: Inspector | None
    """None if there is nothing to look at, or if `problem` says why not."""
    problem: str = ""

    @property
    def name(self) -> str:
        """The broker's address, without secrets."""
        return self.inspector.name if self.inspector else f"{self.scheme}:"


class Surroundings:
    """For one examination, whose checks run one after another."""

    def __init__(self, settings: Settings, purposes: Sequence[Purpose], limit: float) -> None:
        self.settings = settings
        self.purposes = purposes
        self.limit = limit
        """Seconds that a check may take."""
        self._store: BlockingStore | None = None
        self._known: dict[str, object] = {}
        self._finding_out: list[str] = []

    def once(self, name: str, find_out: Callable[[], T]) -> T:
        """What `find_out` returned, or raised, when it was called for the first time."""
        if name not in self._known:
            self._finding_out.append(name)
            found: object
            try:
                found = find_out()
            except Exception as error:  # noqa: BLE001 - raised below, now and for whoever asks later
                found = error
            self._known.setdefault(name, found)  # what was given up meanwhile stays so
            if name in self._finding_out:
                self._finding_out.remove(name)
        known = self._known[name]
        if isinstance(known, Exception):
            raise known
        return cast("T", known)

    def give_up(self) -> None:
        """Break off what a check waits for. What it was finding out is not tried again."""
        late = f"no answer within {self.limit:g} s"
        for name in self._finding_out:
            self._known[name] = DatabaseUnreachable(late) if name == DATABASE else TimeoutError(late)
        self._finding_out = []
        if self._store is not None:
            self._store.break_off()
            self._store = None

    def close(self) -> None:
        """Close the connections."""
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def dialect(self) -> str:
        """``postgresql``, ``mysql`` or ``sqlite``."""
        from postroom.store.connections.urls import dialect_of_url

        return dialect_of_url(self.settings.database or "")

    @property
    def names(self) -> Names:
        """Where the tables are."""
        from postroom.store.sql.names import Names

        return Names.of(self.dialect, self.settings.schema, self.settings.table_prefix)

    @property
    def server(self) -> Server:
        """What to ask the database about itself."""
        from postroom.store.admin.inspection.servers import SERVERS

        return SERVERS[self.dialect](self.names)

    @property
    def traffic(self) -> Traffic:
        """What to ask about messages."""
        from postroom.store.admin.inspection.traffic import Traffic

        return Traffic(self.names, Order(self.settings.order))

    def read(self, steps: Steps[T]) -> T:
        """Run steps that only read. Raises `DatabaseUnreachable` at once if the database did not answer before."""
        self.answer()
        return self._read(steps)

    def call(self, function: Callable[[Connection, Names], T]) -> T:
        """Call a function with a connection; otherwise like `read`."""
        self.answer()
        names = self.names
        return self._opened().call(lambda connection: function(connection, names))

    def answer(self) -> Answer:
        """How the database answered. Raises `DatabaseUnreachable` or `DriverMissing`."""
        return self.once(DATABASE, self._first_answer)

    def waiting(self) -> list[Waiting]:
        """The unsent messages of each queue."""
        return self.once("waiting", lambda: self.read(self.traffic.waiting()))

    def dead_letters(self) -> DeadLetters:
        """Dead letters by code."""
        return self.once("dead letters", lambda: self.read(self.traffic.dead_letters()))

    def workers(self) -> tuple[Worker, ...]:
        """Relays and consumers that are alive."""
        from postroom.store.admin.status import StatusReader

        return self.once("workers", lambda: self.read(StatusReader(self.names).workers()))

    def brokers(self) -> list[BrokerSeat]:
        """The brokers of the settings. Raises `InvalidSetting` for a URL that cannot be used."""
        return self.once("brokers", lambda: [_seat(pattern, url) for pattern, url in self._urls().items()])

    def facts(self, seat: BrokerSeat) -> BrokerFacts:
        """What a broker says about itself. Raises `BrokerUnavailable`, or `NotChecked` if it cannot be asked."""
        found = self.once("broker facts", lambda: self._ask_all(self._facts))
        return _answered(seat, found)

    def certificate(self, seat: BrokerSeat) -> Certificate | None:
        """The certificate that a broker shows. Raises as `facts` does, or `OSError`."""
        found = self.once("certificates", lambda: self._ask_all(lambda _, one: one.certificate(self._answer_time)))
        return _answered(seat, found)

    @property
    def _answer_time(self) -> float:
        return self.limit * BROKER_SHARE

    def _facts(self, pattern: str, inspector: Inspector) -> Coroutine[Any, Any, BrokerFacts]:
        try:
            topics = answer_within(self._topics, self.limit * TOPICS_SHARE)
        except Exception:  # noqa: BLE001 - the database has checks of its own: look at what the settings name
            topics = []
        patterns = self._urls()
        routed = sorted({*topics, *self.settings.routes.values()})
        mine = [topic for topic in routed if best_pattern(patterns, topic) == pattern]
        return inspector.facts(mine, self._answer_time)

    def _ask_all(self, ask: Callable[[str, Inspector], Coroutine[Any, Any, T]]) -> dict[str, T | Exception]:
        """Ask all brokers at once, each in a thread and a loop of its own: even a name server may be silent."""
        asked = {seat.pattern: ask(seat.pattern, seat.inspector) for seat in self.brokers() if seat.inspector}
        return answers_within(
            {name: partial(asyncio.run, one) for name, one in asked.items()}, self.limit * BROKERS_SHARE
        )

    def _topics(self) -> list[str]:
        return self.once("topics", lambda: self.read(self.traffic.topics()))

    def _urls(self) -> dict[str, str]:
        default = {} if self.settings.broker is None else {ANYTHING: self.settings.broker}
        return default | dict(self.settings.brokers)

    def _read(self, steps: Steps[T]) -> T:
        from postroom.store.admin.inspection.limited import limited

        return self._opened().run(limited(self.names, self.limit, steps))

    def _opened(self) -> BlockingStore:
        if self._store is None:
            from postroom.store.connections.limits import Limits

            self._store = open_store(self.settings, limits=Limits(self.limit, self.limit))
        return self._store

    def _first_answer(self) -> Answer:
        began = time.monotonic()
        try:
            version = self._read(self.server.version())
        except SchemaMissing as error:  # of SQLite: there is no file
            raise DatabaseUnreachable(str(error)) from error
        return Answer(version, time.monotonic() - began)


def _answered(seat: BrokerSeat, found: Mapping[str, T | Exception]) -> T:
    if seat.inspector is None:
        raise NotChecked(seat.problem)
    told = found[seat.pattern]
    if isinstance(told, Exception):
        raise told
    return told


def _seat(pattern: str, url: str) -> BrokerSeat:
    scheme = url.partition(":")[0]
    if scheme in ("python", "stdout", "memory"):
        return BrokerSeat(pattern, scheme, None, f"{scheme}: has no server to look at")
    if scheme in BRIDGES:
        return BrokerSeat(pattern, scheme, None, f"{scheme}: has a server that only its own client knows")
    if scheme not in CLIENTS:
        raise InvalidSetting(f"{scheme}: is not a broker that Postroom knows")
    try:
        return BrokerSeat(pattern, scheme, load(CLIENTS[scheme].inspector)(url))
    except DriverMissing as error:
        return BrokerSeat(pattern, scheme, None, str(error))
