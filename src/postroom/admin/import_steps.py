"""An import from another outbox's table, as operations that a store runs, sync or async: one batch after another."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from postroom.errors import DuplicateMessage, InvalidIdentifier, InvalidMessage, InvalidSetting, PrivilegeMissing
from postroom.message import Message
from postroom.outbox import check_acceptable
from postroom.rules.importing.layouts import LAYOUTS, TOPIC, Format, Left, Wanted, shown_id
from postroom.rules.routing import Routing
from postroom.runtime import wakeup
from postroom.store.importing.foreign_table import ForeignTable
from postroom.store.importing.rows import ForeignNames, Place, Taken
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.db_errors import is_denied, is_lock_timeout, is_lost_connection, is_refused_value, reason
from postroom.store.sql.names import MAX_IDENTIFIER

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from postroom.settings import Settings
    from postroom.store.admin.audit import Note
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

BATCH = 500
MOST_ROWS = 5000
POLL = 0.5
"""Seconds between two looks at a table that had nothing new."""
KEPT = 100
"""How many of the rows that stay are listed in the result."""
KNOWN = 100_000
"""How many of them are remembered, so that each is told once."""
SAMPLE = 5
TRIES = 3
LONGEST_REST = 30.0
"""Seconds between two tries to reach a database that is gone."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")

Problem = Callable[[Left], None]


class ImportFields(TypedDict, total=False):
    """The optional arguments of `Admin.import_messages` that say what to import, and how."""

    columns: Mapping[str, str]
    headers: Mapping[str, str]
    topic: str | None
    content_type: str | None
    only: Collection[str]
    take_leased: bool
    batch: int
    follow: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`ImportFields` with their defaults, and the table."""

    table: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    content_type: str | None = None
    only: Collection[str] = ()
    take_leased: bool = False
    batch: int = BATCH
    follow: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what meanwhile."""

    progress: Callable[[int], None] | None
    """How many messages a transaction has added."""
    problem: Problem | None
    """A row that stays, once."""
    trouble: Callable[[str], None] | None
    """Why it has to wait for the database."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A message that would be added, without its payload."""

    id: UUID
    topic: str
    key: str | None
    type: str | None
    content_type: str
    bytes: int
    deliver_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, or would do."""

    format: Format
    table: str
    dry_run: bool
    added: int
    """Messages that are now in our outbox; of a dry run, that would be."""
    duplicates: int
    """Rows that were in our outbox already: they were only marked."""
    left: int
    """Rows that cannot become messages. They stay as they are."""
    problems: tuple[Left, ...]
    """The first of these, with the reason for each."""
    held: int
    """Rows that are expired, or the other outbox's to send."""
    unsent: int
    """All rows that the other outbox has not sent: those left, those held, and those that have come since."""
    stopped: bool
    """Whether it was stopped before it had seen all rows."""
    mapping: Mapping[str, str]
    """What each column becomes."""
    sample: tuple[Sample, ...]
    """Of a dry run: the first messages."""


class Importing:
    """One import, to be run batch by batch, each a transaction of its own."""

    def __init__(
        self,
        names: Names,
        settings: Settings,
        format: Format | str,
        options: ImportOptions,
        note: Note,
        told: Told,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._format = _format(format)
        self._layout = LAYOUTS[self._format]
        if names.dialect not in self._layout.databases:
            raise InvalidSetting(
                f"format = {self._format.value!r} is not valid on {names.dialect}: it has its table in "
                f"{' or '.join(self._layout.databases)}"
            )
        where = _where(names.dialect, options.table or self._layout.table, options, self._layout.columns)
        _check(options, has_leases=self._layout.has_leases, format=self._format)
        queue_of = Routing(settings.brokers).queue_of if settings.brokers else None
        writer = WRITERS[names.dialect](names, notify=settings.notify, queue_of=queue_of, stream=settings.cdc)
        self._table = ForeignTable(names, self._format, where, writer, tuple(options.only))
        self._shown = where.shown
        self._wanted = Wanted(
            where.table, options.topic or self._layout.topic, options.content_type, tuple(options.headers)
        )
        self._settings, self._options, self._note = settings, options, note
        self._told, self._clock = told, clock
        self._after: Place | None = None
        self._singly = 0
        """So many of the next rows are taken one by one: the database refused one of them."""
        self._begun: float | None = None
        self._added = self._duplicates = self._left = 0
        self._problems: list[Left] = []
        self._named: set[str] = set()
        self._sample: list[Sample] = []
        self._outages = 0
        """How often in a row the database was gone."""
        self._reached = False
        self.done = False
        """Whether it has seen all rows; with `follow`, never."""

    def batch(self) -> Steps[float]:
        """Import the next rows; returns how many seconds to wait afterwards. One that failed can be run again."""
        try:
            pause = yield from self._batch()
            self._reached, self._outages = True, 0
            return pause
        except Exception as error:
            if not is_denied(error):
                raise
            raise PrivilegeMissing(
                f"the database's user lacks a privilege: {reason(error)}: grant it SELECT, UPDATE and DELETE on "
                f"{self._shown!r}, and what `postroom schema --grants ROLE` prints"
            ) from error

    def rest_after(self, error: Exception) -> float:
        """How many seconds to wait if the database is gone while it follows. Raises any other error."""
        if not (self._options.follow and self._reached and (is_lost_connection(error) or is_lock_timeout(error))):
            raise error
        self._outages += 1
        if self._outages == 1 and self._told.trouble is not None:
            self._told.trouble(f"{reason(error)}: trying again until it is there")
        return min(LONGEST_REST, POLL * 2.0 ** min(self._outages, 10))

    def _batch(self) -> Steps[float]:
        yield from self._table.look()
        if self._begun is None:
            self._begun = self._clock()
            self._left, self._problems = 0, []  # of each time through the table, the last one counts
        taken = yield from self._taken()
        self._note_left(taken.left)
        self._added += len(taken.added)
        self._duplicates += taken.duplicates
        self._sample += [_sample(one) for one in taken.added[: SAMPLE - len(self._sample)]]
        if taken.added and not self._options.dry_run:
            wakeup.notify()
        if self._told.progress is not None and taken.added:
            self._told.progress(len(taken.added))
        if taken.reached is not None:
            self._after = taken.reached
            return 0
        took, self._begun = self._clock() - self._begun, None
        self._after = None  # from the beginning: what commits late may stand before what was read
        self.done = not self._options.follow
        return max(POLL, took) if self._options.follow else 0

    def result(self) -> Steps[Imported]:
        """What it has done so far."""
        yield from self._table.look()
        unsent, held = yield from self._table.counts(take_leased=self._options.take_leased)
        there = self._table.there
        return Imported(
            format=self._format,
            table=self._shown,
            dry_run=self._options.dry_run,
            added=self._added,
            duplicates=self._duplicates,
            left=self._left,
            problems=tuple(self._problems),
            held=held,
            unsent=unsent,
            stopped=not self.done and not self._options.follow,
            mapping={
                **{
                    there[role]: column.becomes
                    for role, column in self._layout.columns.items()
                    if role in there and column.becomes
                },
                **{column: f"header {name}" for name, column in self._options.headers.items()},
            },
            sample=tuple(self._sample) if self._options.dry_run else (),
        )

    def _taken(self) -> Steps[Taken]:
        leased = self._options.take_leased
        if self._options.dry_run:
            return (yield from self._table.preview(self._make, self._options.batch, self._after, take_leased=leased))
        tries_left = TRIES
        while True:
            limit = 1 if self._singly else self._options.batch
            seen: list[Place] = []
            try:
                taken = yield from self._table.take(
                    self._make, limit, self._after, self._note, take_leased=leased, seen=seen.append
                )
            except DuplicateMessage:  # a producer has added a message with the id of a row meanwhile: look again
                tries_left -= 1
                if not tries_left:
                    raise
            except Exception as error:
                if not seen or not is_refused_value(error):
                    raise
                if self._singly:
                    self._singly -= 1
                    identifier = shown_id(seen[-1].values[-1])
                    return Taken(left=[Left(identifier, "the database refuses it")], reached=seen[-1])
                self._singly = limit
            else:
                self._singly = max(0, self._singly - 1)
                return taken

    def _make(self, row: Mapping[str, Any]) -> Message | Left:
        found = self._layout.mapped(row, self._wanted)
        if isinstance(found, Left):
            return found
        try:
            message = Message.new(
                found.topic,
                found.payload,
                key=found.key,
                type=found.type,
                aggregate_type=found.aggregate_type,
                aggregate_id=found.aggregate_id,
                headers=found.headers,
                id=found.id,
                deliver_at=found.deliver_at,
                expires_at=found.expires_at,
                content_type=found.content_type,
            )
            check_acceptable(message, self._settings)
        except InvalidMessage as error:
            return Left(shown_id(row["id"]), str(error))
        return message

    def _note_left(self, left: list[Left]) -> None:
        self._left += len(left)
        self._problems += left[: KEPT - len(self._problems)]
        for one in left:
            if one.id not in self._named:
                if len(self._named) < KNOWN:
                    self._named.add(one.id)
                if self._told.problem is not None:
                    self._told.problem(one)


def _sample(message: Message) -> Sample:
    return Sample(
        message.id,
        message.topic,
        message.key,
        message.type,
        message.content_type,
        message.size,
        message.deliver_at,
        message.expires_at,
    )


def _format(given: Format | str) -> Format:
    try:
        return Format(given)
    except ValueError:
        raise InvalidSetting(f"format = {given!r} is not valid: use {', '.join(Format)}") from None


def _check(options: ImportOptions, *, has_leases: bool, format: Format) -> None:
    if not 1 <= options.batch <= MOST_ROWS:
        raise InvalidSetting(f"batch = {options.batch!r} is not valid: give 1 to {MOST_ROWS} rows")
    if options.topic is not None and TOPIC not in options.topic and not options.only:
        raise InvalidSetting(
            f"topic = {options.topic!r} has no {TOPIC}, so all rows would go to one topic: put {TOPIC} where the row's "
            "own stands, or say with `only` which rows you mean"
        )
    if options.take_leased and not has_leases:
        raise InvalidSetting(f"take_leased is set, but {format.value} leases no rows: leave it out")
    if options.follow and options.dry_run:
        raise InvalidSetting("follow and dry_run are both set: a dry run ends when it has read the table")


def _where(dialect: str, table: str, options: ImportOptions, columns: Collection[str]) -> ForeignNames:
    schema, dot, own = table.rpartition(".")
    if dot and dialect == "sqlite":
        raise InvalidIdentifier(f"table {table!r} names a schema, but SQLite has none: give the table's name alone")
    for role in options.columns:
        if role not in columns:
            raise InvalidSetting(f"columns has {role!r}, which is none of {', '.join(columns)}")
    names = [("table", own), *([("schema", schema)] if dot else [])]
    names += [("column", one) for one in (*options.columns.values(), *options.headers.values())]
    for what, name in names:
        if not _IDENTIFIER.fullmatch(name) or len(name) > MAX_IDENTIFIER:
            raise InvalidIdentifier(
                f"{what} {name!r} is not a plain identifier: a letter or underscore, then letters, digits, underscores "
                f"or $, at most {MAX_IDENTIFIER} characters"
            )
    return ForeignNames(schema or None, own, options.columns, options.headers)
