"""Sweeps: go through a table along its primary key, page by page, and remove what is old.

A page is bounded by the rows that are read, not by those that are found: however few of them are old, no statement
takes long. Each page starts where the one before ended, so that what was just removed is not read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.store.sql.dialect import listed
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.store.sql.names import Names


class Old(NamedTuple):
    """The rows of a table that may go."""

    table: str
    """As SQL templates call it."""
    keys: tuple[str, ...]
    """The columns of its primary key."""
    first: str | int
    """Comes before all values of these columns."""
    condition: str
    params: Mapping[str, Any] = {}
    within: str = ""
    """What all of them have in common that the primary key can find: other rows are not even read."""
    oldest_first: bool = False
    """The primary key follows the age: behind the first that stays, all stay."""
    locks: bool = True
    """Rows that a transaction has locked are passed over, instead of waiting for it."""


class Sweep(Operations):
    """One pass through a table. Several may go through it at once.

    A page that fails leaves the sweep where it was: to run it again is safe.
    """

    def __init__(self, names: Names, old: Old) -> None:
        super().__init__(names)
        self.old = old
        self.table = self.tables[old.table]
        self.done = False
        self._after: Row = (old.first,) * len(old.keys)

    def page(self, rows: int) -> Steps[int]:
        """Go through so many more rows, and remove those that are old; returns how many. Sets `done` at the end."""
        last = yield from self._end_of_page(rows)
        page, params = self._page_up_to(last)
        removed = yield from self._remove(page, params, rows)
        self._after = last or self._after
        self.done = last is None or (self.old.oldest_first and removed < rows)
        return removed

    def _end_of_page(self, rows: int) -> Steps[Row | None]:
        """The primary key of the page's last row; None if the rest of the table is not a whole page."""
        where, params = self._page_up_to(None)
        keys = listed(self.old.keys)
        by_key = self.dialect.by_primary_key
        found = yield Query(
            f"SELECT {keys} FROM {self.table}{by_key} WHERE {where} ORDER BY {keys} LIMIT 1 OFFSET :rows",
            {**params, "rows": rows - 1},
        )
        return tuple(found.rows[0]) if found.rows else None

    def _page_up_to(self, last: Row | None) -> tuple[str, dict[str, Any]]:
        conditions = [self.old.within] if self.old.within else []
        params = dict(self.old.params)
        for name, sign, key in (("after", ">", self._after), ("last", "<=", last)):
            if key is not None:
                conditions.append(self._compared(sign, name))
                params |= {f"{name}_{n}": value for n, value in enumerate(key)}
        return " AND ".join(conditions), params

    def _compared(self, sign: str, name: str) -> str:
        """The primary key comes after the one in these parameters, or up to it."""
        columns = self.old.keys
        values = [f":{name}_{n}" for n in range(len(columns))]
        if self.dialect.name != "mysql" or len(columns) == 1:
            return f"({listed(columns)}) {sign} ({listed(values)})"
        # MySQL finds no range in a comparison of rows.
        cases: list[str] = []
        for n, column in enumerate(columns):
            same = [f"{columns[before]} = {values[before]}" for before in range(n)]
            here = sign if n == len(columns) - 1 else sign[0]
            cases.append(" AND ".join([*same, f"{column} {here} {values[n]}"]))
        return f"({' OR '.join(f'({case})' for case in cases)})"

    def _remove(self, page: str, params: Mapping[str, Any], rows: int) -> Steps[int]:
        where = f"{page} AND {self.old.condition}"
        if self.dialect.name == "mysql":
            return (yield from self.transaction(self._remove_found, where, params))
        if self.dialect.name == "postgresql" and self.old.locks:
            # In order and with a limit, so that whatever the statistics say, it is found by primary key.
            found = f"SELECT ctid FROM {self.table} WHERE {where} ORDER BY {listed(self.old.keys)} LIMIT :rows"
            removal = (
                f"WITH gone AS (DELETE FROM {self.table} WHERE ctid = ANY (ARRAY({found}{self.dialect.skip_locked})) "
                "RETURNING 1) SELECT count(*) FROM gone"
            )
            params = {**params, "rows": rows}
        elif self.dialect.name == "postgresql":
            removal = f"WITH gone AS (DELETE FROM {self.table} WHERE {where} RETURNING 1) SELECT count(*) FROM gone"
        else:
            removal = f"DELETE FROM {self.table} WHERE {where} RETURNING 1"
            return len((yield from self.statement(removal, params)))
        [[count]] = yield from self.statement(removal, params)
        return int(count)

    def _remove_found(self, where: str, params: Mapping[str, Any]) -> Steps[int]:
        """On MySQL a DELETE would wait for every locked row that it reads, old or not."""
        keys = listed(self.old.keys)
        found = yield Query(
            f"SELECT {keys} FROM {self.table}{self.dialect.by_primary_key} WHERE {where}{self.dialect.skip_locked}",
            params,
        )
        for some in chunks(found.rows):
            yield self._deletion(some)
        return len(found.rows)

    def _deletion(self, rows: Sequence[Row]) -> Query:
        """Delete by primary key, one list for each value of its first columns."""
        *firsts, last = self.old.keys
        groups: dict[Row, list[Any]] = {}
        for row in rows:
            groups.setdefault(row[:-1], []).append(row[-1])
        params: dict[str, Any] = {}
        cases: list[str] = []
        for first, values in groups.items():
            named = {f"key_{len(params) + n}": value for n, value in enumerate((*first, *values))}
            params |= named
            names = [f":{name}" for name in named]
            same = [f"{column} = {name}" for column, name in zip(firsts, names, strict=False)]
            cases.append(" AND ".join([*same, f"{last} IN ({listed(names[len(first) :])})"]))
        return Query(f"DELETE FROM {self.table} WHERE {' OR '.join(f'({case})' for case in cases)}", params)
