"""The stores that the contract suite runs on: every database through every driver, behind one way of calling.

A test asks for `room` and runs once for each driver; marked with `only_on`, once for each driver of these databases.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from uuid import UUID

import pytest
from sqlalchemy import make_url

from postroom import Admin, AsyncAdmin
from postroom.message import Message
from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits
from postroom.rules.ordering import Order, key_hash, lane_of
from postroom.store.connections.stores import BlockingStore, BridgedStore, Store
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import DEFAULT_QUEUE, Operations
from postroom.store.sql.steps import Query, Result, Steps
from tests.contract import clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.store.outbox.leases import Claim, Claimed, Lane, Renewal, Settlement

T = TypeVar("T")

LATER_TABLES = ("saga", "saga_step", "saga_event", "twophase", "twophase_scope", "flow", "attempt")


@dataclass(frozen=True)
class Driver:
    """One way to reach a database. `opened` is the store for its kind of driver, sync or async."""

    name: str
    kind: str
    url_scheme: str
    opened: type[Store | BridgedStore]

    def url(self, url: str) -> str:
        return make_url(url).set(drivername=self.url_scheme).render_as_string(hide_password=False)

    def open(self, url: str) -> BlockingStore:
        return self.opened(self.url(url))


DRIVERS = (
    Driver("sqlite3", "sqlite", "sqlite+pysqlite", Store),
    Driver("aiosqlite", "sqlite", "sqlite+aiosqlite", BridgedStore),
    Driver("psycopg", "postgresql", "postgresql+psycopg", Store),
    Driver("psycopg-async", "postgresql", "postgresql+psycopg", BridgedStore),
    Driver("asyncpg", "postgresql", "postgresql+asyncpg", BridgedStore),
    Driver("pymysql", "mariadb", "mysql+pymysql", Store),
    Driver("asyncmy", "mariadb", "mysql+asyncmy", BridgedStore),
)
AIOMYSQL = Driver("aiomysql", "mariadb", "mysql+aiomysql", BridgedStore)
"""It shares asyncmy's adapter: one test that uses everything is enough."""


def only_on(*names: str) -> pytest.MarkDecorator:
    """Run the test on these drivers, or on all drivers of these databases, alone."""
    chosen = [driver for driver in DRIVERS if driver.kind in names or driver.name in names]
    chosen += [AIOMYSQL] if "aiomysql" in names else []
    return pytest.mark.parametrize("driver", chosen, indirect=True, ids=lambda driver: driver.name)


on_one_driver_of_each_style = only_on("sqlite3", "psycopg", "asyncpg", "pymysql")
"""For what takes long and depends on the database and how it takes parameters, not on sync and async."""

only_with_row_locks = only_on("postgresql", "mariadb")
"""SQLite has one writer at a time, and so no locks on rows."""


class Delivery(NamedTuple):
    """A row of `outbox_delivery`; moments that are "never" are None."""

    state: int
    queue: str
    lane: int
    position: int
    key_hash: int | None
    due: datetime | None
    leased_until: datetime | None
    token: int
    owner: str
    attempts: int
    claims: int
    failed_at: datetime | None
    error_code: str
    error_message: str


class Received(NamedTuple):
    """A row of `outbox_receipt`."""

    outcome: str
    attempts: int
    answer: str | None
    dedup: int | None


class Audited(NamedTuple):
    """A row of `audit`."""

    action: str
    actor: str
    position: int
    message_id: str | None
    details: dict[str, Any]


class AwaitedAdmin:
    """An `AsyncAdmin` behind the methods of `Admin`."""

    def __init__(self, admin: AsyncAdmin, runner: asyncio.Runner) -> None:
        self._admin = admin
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._admin, name)
        return lambda *args, **options: self._runner.run(method(*args, **options))


class Room:
    """A store, and what tests do with it in one word each.

    What is tested runs on the store. What surrounds it is done by the producer, another program on a sync driver.
    """

    def __init__(self, store: BlockingStore, driver: Driver, producer: Store, url: str = "") -> None:
        self.store = store
        self.url = url
        self._admins: dict[Order, Admin] = {}
        self._runner = asyncio.Runner()
        self.producer = producer
        self.driver = driver
        self.names = store.names
        self.tables = store.names.mapping()
        self.deliveries = QueueStore(store.names)
        self._operations = Operations(store.names)
        self._numbers = itertools.count()
        self.dialect = self._operations.dialect

    def on(
        self, queue: str = DEFAULT_QUEUE, order: Order = Order.HOLD, limits: ClaimLimits = DEFAULT_CLAIM_LIMITS
    ) -> QueueStore:
        """The lease protocol with other choices than the default ones."""
        return QueueStore(self.names, queue, order, limits)

    def run(self, steps: Steps[T]) -> T:
        return self.store.run(steps)

    def admin(self, order: Order = Order.HOLD) -> Admin:
        """`Admin` on the room's driver; where that is async, `AsyncAdmin`."""
        if order not in self._admins:
            url, asynchronous = self.driver.url(self.url), self.driver.opened is BridgedStore
            self._admins[order] = (
                cast("Admin", AwaitedAdmin(AsyncAdmin(url, order=order.value), self._runner))
                if asynchronous
                else Admin(url, order=order.value)
            )
        return self._admins[order]

    def close(self) -> None:
        for admin in self._admins.values():
            admin.close()
        self._runner.close()

    def advance(self, seconds: float) -> None:
        clock.advance(self.producer, seconds)

    # What a producer does

    def add(
        self,
        count: int = 1,
        *,
        queue: str = DEFAULT_QUEUE,
        topic: str = "orders",
        payload: object = None,
        deliver_in: float | None = None,
        expires_in: float | None = None,
        **fields: Any,
    ) -> list[int]:
        """Record messages in one transaction, all different unless a payload is given; returns their positions."""
        messages = [
            Message.new(
                topic,
                payload if payload is not None else {"number": next(self._numbers)},
                deliver_at=moment(deliver_in),
                expires_at=moment(expires_in),
                **fields,
            )
            for _ in range(count)
        ]
        return self.add_messages(messages, queue)

    def add_messages(self, messages: Sequence[Message], queue: str = DEFAULT_QUEUE) -> list[int]:
        writer = WRITERS[self.names.dialect](self.names, queue)
        self.producer.run(self._operations.transaction(writer.add, messages))
        newest = self.select(f"SELECT position FROM {{outbox}} ORDER BY position DESC LIMIT {len(messages)}")
        return [position for [position] in reversed(newest)]

    # What a worker does

    def claim(self, worker: str = "worker", limit: int = 100, seconds: float = 30, **options: Any) -> list[Claimed]:
        return self.run(self.deliveries.rows.claim(worker, limit, seconds, **options)).messages

    def take_lanes(self, worker: str = "worker", seconds: float = 30, **options: Any) -> list[Lane]:
        return self.run(self.deliveries.lanes.take(worker, seconds, **options))

    def read_lanes(self, lanes: Sequence[Lane], limit: int = 100, seconds: float = 30, **options: Any) -> Claim:
        return self.run(self.deliveries.lanes.read(lanes, limit, seconds, **options))

    def settle(self, *settlements: Settlement) -> list[Claimed]:
        return self.run(self.deliveries.settlements.settle(settlements))

    # What is in the tables

    def select(self, text: str, **params: Any) -> list[tuple[Any, ...]]:
        """Run a statement in which ``{outbox}``, ``{delivery}`` and the others stand for tables."""
        return [tuple(row) for row in self.producer.run(single(text.format(**self.tables), params)).rows]

    def execute(self, text: str, **params: Any) -> None:
        """`select` for a statement that returns no rows."""
        self.producer.run(single(text.format(**self.tables), params))

    def delivery(self, position: int) -> Delivery:
        found = self.find_delivery(position)
        assert found is not None, f"message {position} has no delivery"
        return found

    def find_delivery(self, position: int) -> Delivery | None:
        columns = ", ".join(
            f"nullif({name}, {self.dialect.never})" if name in clock.MOMENTS["delivery"] else name
            for name in Delivery._fields
        )
        rows = self.select(f"SELECT {columns} FROM {{delivery}} WHERE position = :position", position=position)
        if not rows:
            return None
        found = Delivery(*rows[0])
        return found._replace(
            due=self.dialect.read_moment(found.due),
            leased_until=self.dialect.read_moment(found.leased_until),
            failed_at=self.dialect.read_moment(found.failed_at),
        )

    def positions(self, state: int | None = None) -> list[int]:
        """Positions of unsent messages: of all, or of those in a stored state."""
        found = self.select("SELECT position, state FROM {delivery} ORDER BY position")
        return [position for position, stored in found if state is None or stored == state]

    def receipt(self, position: int) -> Received | None:
        columns = ", ".join(Received._fields)
        rows = self.select(f"SELECT {columns} FROM {{receipt}} WHERE position = :position", position=position)
        return Received(*rows[0]) if rows else None

    def receipts(self) -> dict[int, str]:
        return dict(self.select("SELECT position, outcome FROM {receipt} ORDER BY position"))

    def ids(self, positions: Sequence[int]) -> list[UUID]:
        numbers = whole_numbers(positions)
        found = dict(self.select(f"SELECT position, id FROM {{outbox}} WHERE position IN ({numbers})"))
        return [UUID(str(found[position])) for position in positions]

    def audit(self) -> list[Audited]:
        columns = ", ".join(Audited._fields)
        rows = self.select(f"SELECT {columns} FROM {{audit}} ORDER BY id")
        return [Audited._make([*facts, json.loads(details)]) for *facts, details in rows]

    def statuses(self) -> dict[int, str]:
        """Each message's status as the view `outbox_status` shows it."""
        return dict(self.select("SELECT position, status FROM {status_view} ORDER BY position"))

    def empty(self) -> None:
        """Make the tables as they were after `init`, but positions go on."""
        self.producer.run(self._operations.transaction(self._empty))

    def count_on_from(self, position: int) -> None:
        """Give out this position next, as a server does that lacks what another gave out."""
        table = self.tables["outbox"]
        statements = {
            "sqlite": f"UPDATE sqlite_sequence SET seq = {position - 1} WHERE name = '{self.names.bare('outbox')}'",
            "postgresql": f"SELECT setval(pg_get_serial_sequence('{table}', 'position'), {position}, false)",
            "mysql": f"ALTER TABLE {table} AUTO_INCREMENT = {position}",
        }
        self.producer.run(single(statements[self.names.dialect]))

    def _empty(self) -> Steps[None]:
        for table in ("outbox", "delivery", "receipt", "audit", "inbox", "idempotency", "worker", *LATER_TABLES):
            yield Query(f"DELETE FROM {self.tables[table]}")
        yield Query(f"DELETE FROM {self.tables['lane']} WHERE queue <> '{DEFAULT_QUEUE}'")
        yield Query(
            f"UPDATE {self.tables['lane']} SET token = 0, owner = '', read_to = 0, leased_until = {self.dialect.never}"
        )


def lost_by(renewal: Renewal) -> tuple[list[Claimed], list[Lane]]:
    """What a renewal found lost, of messages and of lanes."""
    return renewal.lost, renewal.lost_lanes


def moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)


def positions(claimed: Sequence[Claimed]) -> list[int]:
    return [one.position for one in claimed]


def keys_of_lane(lane: int) -> Iterator[str]:
    """Different keys that share a lane."""
    return (key for key in map("key-{}".format, itertools.count()) if lane_of(key_hash(key)) == lane)


def key_of_lane(lane: int) -> str:
    return next(keys_of_lane(lane))


def single(text: str, params: dict[str, Any] | None = None) -> Steps[Result]:
    """One statement, as an operation."""
    return (yield Query(text, params or {}))
