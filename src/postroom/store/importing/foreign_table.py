"""The table of another outbox: its unsent rows in order, taken and added to ours in one transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroom.errors import InvalidSetting, PostroomError
from postroom.rules.importing.layouts import LAYOUTS, Column, Format, Kind, Layout, Left
from postroom.store.admin.audit import IMPORTED, Note, audit
from postroom.store.importing.dialects import Rows, earliest, has_order, is_whole, parameter, read, size
from postroom.store.importing.rows import ForeignNames, Found, Place, Taken
from postroom.store.sql.dialect import listed, text, whole_numbers
from postroom.store.sql.operations import Operations, fitting_in
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.message import Message
    from postroom.store.outbox.writer import Writer
    from postroom.store.sql.names import Names

    Make = Callable[[Mapping[str, Any]], Message | Left]

MOST_BYTES = 16 * 1024 * 1024
"""Payload bytes of one transaction, and so of what is in memory at once; a single row may exceed it."""
HEADER = "header:"
AHEAD = 10_000
"""Rows whose places are read at once: finding the next ones may mean to sort all that are unsent."""
PATIENCE = 60
"""Seconds to wait for another import's transaction, on MySQL and MariaDB."""


class ForeignTable(Operations):
    """Reads and marks the rows of another outbox."""

    def __init__(self, names: Names, format: Format, where: ForeignNames, writer: Writer, only: Sequence[str]) -> None:
        super().__init__(names)
        self._layout: Layout = LAYOUTS[format]
        self._format = format
        self._where = where
        self._writer = writer
        self._only = only
        own = names.quoted(where.table)
        self._table = own if where.schema is None else f"{names.quoted(where.schema)}.{own}"
        self._types: dict[str, str] = {}
        """Of the columns that are there, by the names that they have by default."""
        self._ahead: list[Found] = []
        """Places that were read at once, the last time."""
        self._held: set[str | bytes] = set()
        """Keys of rows that could not be taken, this time through the table: those behind them wait."""

    @property
    def there(self) -> dict[str, str]:
        """The columns that are read: their names by default → their names here."""
        return {role: self._name(role) for role in self._types}

    def look(self) -> Steps[None]:
        """See which columns there are. Raises `InvalidSetting` if it is no table of this format."""
        if self._types:
            return
        found = yield self._columns()
        types = {text(name): text(kind).lower() for name, kind in found.rows}
        if not types:
            raise InvalidSetting(
                f"there is no table {self._where.shown!r} in this database: check its name and schema "
                f"({self._format} calls it {self._layout.table!r})"
            )
        wanted = {**self._layout.columns, **{HEADER + name: Column(Kind.TEXT, "") for name in self._where.headers}}
        missing = [
            self._name(role)
            for role, column in wanted.items()
            if self._name(role) not in types and (role in self._where.columns or not column.optional)
        ]
        if missing:
            raise InvalidSetting(
                f"table {self._where.shown!r} has no column {', '.join(map(repr, missing))}, so it is none of "
                f"{self._format}: check the name, or say what its columns are called"
            )
        self._types = {role: types[self._name(role)] for role in wanted if self._name(role) in types}
        quoted = {role: self.names.quoted(self._name(role)) for role in self._types}
        self._rows = Rows(self._format, self.dialect, quoted, self._table)
        self._order = [role for role in self._layout.order if role in self._types]
        for role in self._order:
            if self._layout.columns[role].optional and not has_order(self._types[role]):
                raise InvalidSetting(
                    f"column {self._name(role)!r} of {self._where.shown!r} is of type {self._types[role]!r}, which "
                    f"gives rows no order: give another column for {role!r}, with a moment or a number"
                )

    def _columns(self) -> Query:
        where = self._where
        if self.dialect.name == "postgresql":
            return Query(
                "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute "
                "WHERE attrelid = to_regclass(:name::text) AND attnum > 0 AND NOT attisdropped",
                {"name": self._table},
            )
        if self.dialect.name == "mysql":
            return Query(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_schema = coalesce(:schema, database()) AND table_name = :name",
                {"schema": where.schema, "name": where.table},
            )
        return Query("SELECT name, type FROM pragma_table_info(:name)", {"name": where.table})

    def _name(self, role: str) -> str:
        if role.startswith(HEADER):
            return self._where.headers[role.removeprefix(HEADER)]
        return self._where.columns.get(role, role)

    def take(
        self,
        make: Make,
        limit: int,
        after: Place | None,
        note: Note,
        *,
        take_leased: bool,
        seen: Callable[[Place], None],
    ) -> Steps[Taken]:
        """Add the next rows to our outbox and mark them there, in one transaction. `seen` gets the last of them first.

        Raises `InvalidSetting` if an id is not unique; then nothing was written.
        """
        return (
            yield from self._alone(
                lambda: self.transaction(self._take, make, limit, after, note, take_leased=take_leased, seen=seen)
            )
        )

    def preview(self, make: Make, limit: int, after: Place | None, *, take_leased: bool) -> Steps[Taken]:
        """What `take` would do, without a lock and without a write."""
        found = yield from self._next(limit, after, take_leased=take_leased)
        taken = Taken(reached=found[-1].place if found else None)
        rows = yield from self._read(found, take_leased=take_leased, lock="")
        yield from self._sort(rows, make, taken)
        return taken

    def counts(self, *, take_leased: bool) -> Steps[tuple[int, int]]:
        """How many rows the other outbox has not sent, and how many of these are expired or its own to send."""
        rows, free = self._rows.counted(take_leased=take_leased)
        found = yield Query(
            f"SELECT count(*), coalesce(sum(CASE WHEN {free} THEN 0 ELSE 1 END), 0) FROM {rows} "
            f"WHERE {self._rows.unsent()}{self._addressed()}",
            self._addresses(),
        )
        unsent, held = found.rows[0]
        return int(unsent), int(held)

    def _alone(self, steps: Callable[[], Steps[Taken]]) -> Steps[Taken]:
        """Two imports at once could add rows of one key in the wrong order. PostgreSQL locks in the transaction."""
        if self.dialect.name != "mysql":
            return (yield from steps())
        name = {"name": f"postroom import {self._where.shown}"[:64]}
        held = yield Query(f"SELECT get_lock(:name, {PATIENCE})", name)
        if held.rows[0][0] != 1:
            raise PostroomError(f"another import of {self._where.shown!r} is running: run it again when that has ended")
        try:
            taken = yield from steps()
        except Exception:
            with suppress(Exception):  # the connection may be broken, and then the lock is gone too
                yield Query("SELECT release_lock(:name)", name)
            raise
        yield Query("SELECT release_lock(:name)", name)
        return taken

    def _take(
        self,
        make: Make,
        limit: int,
        after: Place | None,
        note: Note,
        *,
        take_leased: bool,
        seen: Callable[[Place], None],
    ) -> Steps[Taken]:
        if self.dialect.name == "postgresql":
            for name in self._locks():
                yield Query("SELECT pg_advisory_xact_lock(hashtext(:name::text))", {"name": name})
        found = yield from self._next(limit, after, take_leased=take_leased)
        taken = Taken(reached=found[-1].place if found else None)
        if not found:
            return taken
        seen(found[-1].place)
        rows = yield from self._read(found, take_leased=take_leased, lock=self.dialect.skip_locked)
        done = yield from self._sort(rows, make, taken)
        if taken.added:
            yield from self._writer.add(taken.added)
        if done:
            yield from self._mark(done)
            details = {"format": str(self._format), "table": self._where.shown, "count": len(taken.added)}
            yield from audit(self.names, IMPORTED, note, [(None, None, details)])
        return taken

    def _locks(self) -> list[str]:
        """Names of advisory locks, in the order in which to take them."""
        if self._format is not Format.TXOUTBOX:
            return [f"postroom:import:{self._where.shown}"]
        # Those of its relays, so that they lease no rows meanwhile. They name the table with or without the schema.
        return [f"txoutbox:{name}" for name in sorted({self._where.table, self._where.shown})]

    def _next(self, limit: int, after: Place | None, *, take_leased: bool) -> Steps[list[Found]]:
        """The next rows, as many as fit into memory. They are not locked yet."""
        if after is None:
            self._held.clear()
        places = [found.place for found in self._ahead]
        ahead = self._ahead[places.index(after) + 1 :] if after in places else []
        if not ahead:
            ahead = self._ahead = yield from self._look_ahead(max(limit, AHEAD), after, take_leased=take_leased)
        fitting = sum(1 for _ in fitting_in(((one.size,) for one in ahead[:limit]), 0, MOST_BYTES))
        return ahead[:fitting]

    def _look_ahead(self, limit: int, after: Place | None, *, take_leased: bool) -> Steps[list[Found]]:
        rows, ordered = self._rows, [self._ordered(role) for role in self._order]
        keyed = rows.key_and_leased(take_leased=take_leased)
        conditions = [rows.unsent(), f"{rows.column('id')} IS NOT NULL"]  # without an id, it could not be marked
        if not keyed:
            conditions.append(rows.free(take_leased=take_leased))
        params = self._addresses() | {"most": limit}
        if after is not None:
            conditions.append(self._after())
            params |= {f"after_{n}": value for n, value in enumerate(after.values)}
        read_as = [self._as_read(role, one) for role, one in zip(self._order, ordered, strict=True)]
        sized = size(self.dialect, rows.column(self._layout.sized), self._types[self._layout.sized])
        found = yield Query(
            f"SELECT {listed([*read_as, sized, *keyed])} FROM {self._table} t WHERE {' AND '.join(conditions)}"
            f"{self._addressed()} ORDER BY {listed(ordered)} LIMIT :most",
            params,
        )
        width = len(read_as)
        return [Found(Place(tuple(row[:width])), row[width], *row[width + 1 :]) for row in found.rows]

    def _ordered(self, role: str) -> str:
        column = self._rows.column(role)
        if not self._layout.columns[role].optional:
            return column
        return f"coalesce({column}, {earliest(self.dialect, self._types[role])})"

    def _as_read(self, role: str, column: str) -> str:
        """As text where the driver could not read every value, or not give it back unchanged."""
        as_text = self.dialect.name == "postgresql" and not is_whole(self._types[role])
        return f"{column}::text" if as_text else column

    def _after(self) -> str:
        """A condition: behind a place, by all columns of the order."""
        earlier: list[str] = []
        ways: list[str] = []
        for n, role in enumerate(self._order):
            value = parameter(self.dialect, f"after_{n}", self._types[role])
            ways.append(" AND ".join([*earlier, f"{self._ordered(role)} > {value}"]))
            earlier.append(f"{self._ordered(role)} = {value}")
        first = f"{self._ordered(self._order[0])} >= {parameter(self.dialect, 'after_0', self._types[self._order[0]])}"
        return f"{first} AND ({' OR '.join(f'({way})' for way in ways)})"  # the first lets an index find the place

    def _addressed(self) -> str:
        if not self._only:
            return ""
        these = listed(f":only_{n}" for n in range(len(self._only)))
        return f" AND {self._rows.column(self._layout.addressed)} IN ({these})"

    def _addresses(self) -> dict[str, Any]:
        return {f"only_{n}": value for n, value in enumerate(self._only)}

    def _read(self, found: Sequence[Found], *, take_leased: bool, lock: str) -> Steps[list[dict[str, Any]]]:
        """Those of these rows that are still free, in order, without the ones that wait behind another on their key."""
        candidates = [one.place.values[-1] for one in found if not one.leased and one.key not in self._held]
        rows = (yield from self._read_ids(candidates, take_leased=take_leased, lock=lock)) if candidates else {}
        free: list[dict[str, Any]] = []
        for one in found:
            row = rows.get(one.place.values[-1])
            if row is not None and one.key not in self._held:
                free.append(row)
            elif one.key is not None:
                self._held.add(one.key)
        return free

    def _read_ids(self, ids: Sequence[Any], *, take_leased: bool, lock: str) -> Steps[dict[Any, dict[str, Any]]]:
        kinds = {role: column.kind for role, column in self._layout.columns.items()}
        roles = [role for role in self._types if role != "id"]
        columns = [
            read(self.dialect, self._rows.column(role), self._types[role], kinds.get(role, Kind.TEXT)) for role in roles
        ]
        these, params = self._these(ids)
        identifier = self._as_read("id", self._rows.column("id"))
        found = yield Query(
            f"SELECT {listed([identifier, *columns])} FROM {self._table} t WHERE t.{these} AND {self._rows.unsent()} "
            f"AND {self._rows.free(take_leased=take_leased)}{lock}",
            params,
        )
        return {row[0]: dict(zip(("id", *roles), row, strict=True)) for row in found.rows}

    def _these(self, ids: Sequence[Any]) -> tuple[str, dict[str, Any]]:
        column = self.names.quoted(self._name("id"))
        if all(type(one) is int for one in ids):
            return f"{column} IN ({whole_numbers(ids)})", {}
        params = {f"id_{n}": one for n, one in enumerate(ids)}
        these = listed(parameter(self.dialect, name, self._types["id"]) for name in params)
        return f"{column} IN ({these})", params

    def _sort(self, rows: Sequence[Mapping[str, Any]], make: Make, taken: Taken) -> Steps[list[Any]]:
        """Which rows are to be added, are there already, or stay. Returns the ids of the first two."""
        made: list[tuple[Any, Message]] = []
        for row in rows:
            one = make(row)
            if isinstance(one, Left):
                taken.left.append(one)
            else:
                made.append((row["id"], one))
        known = yield from self._known([message.id for _, message in made])
        done: list[Any] = []
        for identifier, message in made:
            if message.id not in known:
                taken.added.append(message)
                known[message.id] = message.digest
            elif known[message.id] == message.digest:
                taken.duplicates += 1
            else:
                taken.left.append(Left(str(message.id), "our outbox has another message with this id"))
                continue
            done.append(identifier)
        return done

    def _known(self, ids: Sequence[UUID]) -> Steps[dict[UUID, str | None]]:
        """The digests of those that are in our outbox."""
        if not ids:
            return {}
        params = {f"id_{n}": str(one) for n, one in enumerate(ids)}
        these = listed(f":{name}{self._writer.text_as_id}" for name in params)
        found = yield Query(
            f"SELECT {self._writer.id_as_text}, digest FROM {self.outbox} WHERE id IN ({these})", params
        )
        return {UUID(text(one)): None if digest is None else text(digest) for one, digest in found.rows}

    def _mark(self, ids: Sequence[Any]) -> Steps[None]:
        these, params = self._these(ids)
        statement = self._rows.mark(these)
        if self.dialect.name == "postgresql":
            counted = yield Query(f"WITH marked AS ({statement} RETURNING 1) SELECT count(*) FROM marked", params)
            changed = int(counted.rows[0][0])
        else:
            changed = (yield Query(statement, params)).changed
        if changed != len(ids):
            raise InvalidSetting(
                f"column {self._name('id')!r} of {self._where.shown!r} is not unique: {len(ids)} ids are of {changed} "
                "rows. Nothing was imported of these: give another column that is"
            )
