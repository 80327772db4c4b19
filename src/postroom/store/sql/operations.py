"""What all operations on the tables share: table names, the queue, transactions, and reading rows as messages."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from postroom.rules.ordering import LANES
from postroom.rules.runs import runs
from postroom.store.sql.db_errors import retrying
from postroom.store.sql.dialect import DIALECTS, Dialect, whole_numbers
from postroom.store.sql.rows import Reader, columns
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from postroom.message import Message
    from postroom.store.sql.names import Names

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_QUEUE = "default"
CHUNK = 500
"""Rows per statement or transaction: few enough for every database's limits, and for short locks."""


class Operations:
    """Operations on one queue's rows, each a generator of statements. Public ones run their own transactions."""

    def __init__(self, names: Names, queue: str = DEFAULT_QUEUE) -> None:
        self.dialect: Dialect = DIALECTS[names.dialect]()
        self.names = names
        self.tables = names.mapping()
        self.queue = queue
        self.outbox, self.delivery, self.receipt, self.lane = (
            self.tables[name] for name in ("outbox", "delivery", "receipt", "lane")
        )
        self.delivery_by_key = f"{self.delivery}{self.dialect.by_primary_key}"
        """The deliveries to UPDATE, with a condition of `places`."""
        self.now = self.dialect.now
        self.reader = Reader(self.dialect)
        self.columns = columns("m", self.dialect)
        """The message columns for a SELECT."""

    def transaction(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        """Run an operation in a transaction of its own; again, if the database undid it in favour of another."""
        return (yield from retrying(lambda: self._transaction(operation(*args, **kwargs))))

    def _transaction(self, steps: Steps[T]) -> Steps[T]:
        yield Query(self.dialect.begin)
        try:
            result = yield from steps
        except Exception:
            with suppress(Exception):  # the connection may be broken, and nothing is left to undo
                yield Query("ROLLBACK")
            raise
        yield Query("COMMIT")
        return result

    def statement(self, text: str, params: Mapping[str, Any]) -> Steps[Sequence[Row]]:
        """Run one statement that commits by itself; again, if it lost a deadlock."""
        return (yield from retrying(lambda: _single(Query(text, params))))

    def make_lanes(self) -> Steps[bool]:
        """Create the lanes of this queue. Returns False if they exist."""
        there = yield Query(f"SELECT 1 FROM {self.lane} WHERE queue = :queue LIMIT 1", {"queue": self.queue})
        if there.rows:
            return False
        rows = ", ".join(f"(:queue, {number})" for number in range(LANES))
        yield Query(self.dialect.insert_missing(self.lane, "queue, lane", rows), {"queue": self.queue})
        return True

    def reread_lanes(self, queue: str, lanes: Collection[int]) -> Steps[None]:
        """Make the holders of these lanes read them from the beginning next.

        Call it first in a transaction that frees or brings in something that reads may have passed: workers, too, lock
        a lane before what is in it. How far a lane was read is kept, as a number below zero.
        """
        these = f"queue = :queue AND lane IN ({whole_numbers(sorted(lanes))})"
        source, only = self.dialect.only_lanes(self.lane, sorted(lanes))
        yield Query(
            f"SELECT l.lane FROM {source} WHERE l.queue = :queue AND {only} ORDER BY l.lane{self.dialect.for_update}",
            {"queue": queue},
        )
        yield Query(f"UPDATE {self.lane} SET read_to = -1 - read_to WHERE {these} AND read_to >= 0", {"queue": queue})

    def places(self, deliveries: Iterable[HasPlace]) -> str:
        """A condition that finds these deliveries by primary key, next to state and queue."""
        return self.dialect.places(_by_lane(deliveries))

    def only_deliveries(self, deliveries: Iterable[HasPlace]) -> tuple[str, str]:
        """A FROM clause and a condition, next to state and queue, that lock only these deliveries, called `d`."""
        return self.dialect.only_deliveries(self.delivery, _by_lane(deliveries))

    def parts_at(self, positions: Sequence[int]) -> Iterator[Part]:
        """What finds these positions, in ascending order: a range for each run, or else lists, a statement for each."""
        found = runs(positions)
        for run in found:
            yield Part("position BETWEEN :first AND :last", {"first": run.first, "last": run.last})
        for some in () if found else chunks(positions):
            yield Part(f"position IN ({whole_numbers(some)})", {})

    def message(self, row: Row) -> Message:
        """The message of a row; `Reader` says which columns it has."""
        return self.reader.message(row)

    def size(self, delivery: str, message: str | None = None) -> str:
        """The size of a delivery's message in bytes: as the producer gave it, or else measured."""
        real = self.dialect.bytes_of(message or "sized")
        if message is None:
            real = f"coalesce((SELECT {real} FROM {self.outbox} sized WHERE sized.position = {delivery}.position), 0)"
        given = self.dialect.whole(f"{delivery}.size")
        return f"CASE WHEN {given} > 0 THEN {given} ELSE {real} END"

    def tries(self) -> str:
        """The columns for attempts and claims of delivery `d`."""
        return f"{self.dialect.whole('d.attempts')}, {self.dialect.whole('d.claims')}"


def _by_lane(deliveries: Iterable[HasPlace]) -> dict[int, list[int]]:
    lanes: dict[int, set[int]] = {}
    for one in deliveries:
        lanes.setdefault(one.lane, set()).add(one.position)
    return {lane: sorted(positions) for lane, positions in lanes.items()}


def _single(query: Query) -> Steps[Sequence[Row]]:
    return (yield query).rows


UNBOUNDED = 2**62


def read_up_to(stored: int) -> int:
    """How far a lane was read, even if it is to be read again: see `Operations.reread_lanes`."""
    return stored if stored >= 0 else -1 - stored


def fitting_in(rows: Iterable[Row], size: int, most_bytes: int) -> Iterator[Row]:
    """The first rows that fit into `most_bytes`, and the one that exceeds it, so that there is always one."""
    total = 0
    for row in rows:
        if total >= most_bytes:
            return
        total += row[size]
        yield row


class HasPlace(Protocol):
    """Anything that knows its delivery's lane and position."""

    @property
    def lane(self) -> int: ...
    @property
    def position(self) -> int: ...


class Place(NamedTuple):
    """A delivery's lane and position."""

    lane: int
    position: int


class Part(NamedTuple):
    """A condition that finds some of the given positions, and its parameters."""

    condition: str
    params: Mapping[str, int]


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """The values in chunks of at most this size."""
    return (values[start : start + size] for start in range(0, len(values), size))
