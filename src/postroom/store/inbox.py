"""Inbox marks: a unique row, written in the same transaction as the effect of the message."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from postroom.rules.saga_plan import Direction
from postroom.store.sql.db_errors import code_of, is_duplicate_entry
from postroom.store.sql.dialect import listed, text
from postroom.store.sql.names import TABLES, Names
from postroom.store.sql.operations import chunks
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroom.rules.saga_calls import Call


class Marker:
    """Writes inbox marks where inserting an existing one is no error, as on SQLite."""

    def __init__(self, names: Names) -> None:
        inbox = names.table(TABLES["inbox"])
        self._insert = f"INSERT INTO {inbox} (consumer, message_id) VALUES"
        self._select = f"SELECT 1 FROM {inbox} WHERE consumer = :consumer AND message_id = :id"

    def mark(self, consumer: str, message_id: str) -> Steps[bool]:
        """Write the mark. Returns False if it existed."""
        return bool((yield from self.mark_many(consumer, [message_id])))

    def mark_many(self, consumer: str, message_ids: Collection[str]) -> Steps[set[str]]:
        """Write the marks; returns those that did not exist.

        In the order of the ids, so that two transactions that mark the same ones do not wait for each other in turn.
        """
        fresh: set[str] = set()
        for chunk in chunks(sorted(set(message_ids))):
            params = {f"id_{n}": message_id for n, message_id in enumerate(chunk)}
            rows = listed(f"(:consumer, :{name})" for name in params)
            result = yield Query(
                f"{self._insert} {rows} ON CONFLICT DO NOTHING RETURNING message_id", {"consumer": consumer, **params}
            )
            fresh |= {text(message_id) for [message_id] in result.rows}
        return fresh

    def begin_marked(self, consumer: str, message_id: str) -> str:
        """Statements, to be sent together, that begin a transaction and mark a message; on PostgreSQL only."""
        raise NotImplementedError

    def find_mark(self, consumer: str, message_id: str) -> str:
        """A statement without parameters that finds a row if the mark exists; on PostgreSQL only."""
        raise NotImplementedError

    def pass_barrier(self, consumer: str, call: Call) -> Steps[bool]:
        """Whether to run a saga's call: the first do that no undo has overtaken, the first undo of what was done.

        An undo also marks the do, so that one that comes later is not run any more.
        """
        if call.direction is Direction.FORWARD:
            return (yield from self.mark(consumer, call.done))
        fresh = yield from self.mark_many(consumer, [call.done, call.undone])
        return call.done not in fresh and call.undone in fresh

    def is_marked(self, consumer: str, message_id: str) -> Steps[bool]:
        """Whether the mark exists, as the transaction sees it."""
        found = yield Query(self._select, {"consumer": consumer, "id": message_id})
        return bool(found.rows)


_OPEN = "SET LOCAL postroom.marked = 1"
COMMIT_MARKED = "SELECT pg_catalog.current_setting('postroom.marked')::int; COMMIT"
"""Commits what `begin_marked` began; fails if that was rolled back meanwhile, even if another one is open."""
_NOT_OPEN = {"22P02", "42704"}
"""What PostgreSQL says then: the setting is empty, or has never been made in this session."""
_PLAIN = re.compile(r"[A-Za-z0-9 _.:/@%+-]*")


def is_not_marked(error: BaseException) -> bool:
    """`COMMIT_MARKED` failed because the transaction was ended before."""
    return code_of(error) in _NOT_OPEN


class PostgresMarker(Marker):
    """Passes all ids as one array, so that the statement is the same for any number of them."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._insert_many = (
            f"INSERT INTO {names.table(TABLES['inbox'])} (consumer, message_id) "
            "SELECT :consumer::text, given FROM unnest(:ids::text[]) AS given "
            "ON CONFLICT DO NOTHING RETURNING message_id"
        )
        self._find = f"SELECT 1 FROM {names.table(TABLES['inbox'])} WHERE"

    def begin_marked(self, consumer: str, message_id: str) -> str:
        """Statements, to be sent together, that begin a transaction and mark a message: one row, or none if it was.

        The ids are literals in them, because statements that are sent together take no parameters.
        """
        return f"BEGIN; {_OPEN}; {self._insert} ({_literal(consumer)}, {_literal(message_id)}) ON CONFLICT DO NOTHING"

    def find_mark(self, consumer: str, message_id: str) -> str:
        """A statement without parameters that finds a row if the mark exists."""
        return f"{self._find} consumer = {_literal(consumer)} AND message_id = {_literal(message_id)}"

    def mark_many(self, consumer: str, message_ids: Collection[str]) -> Steps[set[str]]:
        if not message_ids:
            return set()
        result = yield Query(self._insert_many, {"consumer": consumer, "ids": sorted(set(message_ids))})
        return {text(message_id) for [message_id] in result.rows}


class MySQLMarker(Marker):
    """INSERT IGNORE would hide other errors too. A duplicate undoes only its own statement, so it can be caught."""

    def mark_many(self, consumer: str, message_ids: Collection[str]) -> Steps[set[str]]:
        fresh: set[str] = set()
        for chunk in chunks(sorted(set(message_ids))):
            try:
                yield self._insertion(consumer, chunk)
                fresh.update(chunk)
            except Exception as error:
                if not is_duplicate_entry(error):
                    raise
                if len(chunk) > 1:
                    fresh |= yield from self._mark_each(consumer, chunk)
        return fresh

    def _mark_each(self, consumer: str, message_ids: Sequence[str]) -> Steps[set[str]]:
        """Find out which of them exist."""
        fresh: set[str] = set()
        for message_id in message_ids:
            fresh |= yield from self.mark_many(consumer, [message_id])
        return fresh

    def _insertion(self, consumer: str, message_ids: Sequence[str]) -> Query:
        params = {f"id_{n}": message_id for n, message_id in enumerate(message_ids)}
        rows = listed(f"(:consumer, :{name})" for name in params)
        return Query(f"{self._insert} {rows}", {"consumer": consumer, **params})


def _literal(value: str) -> str:
    """A text as SQL, whatever it contains: what is not UTF-8, PostgreSQL refuses.

    Most ids consist of characters that have no meaning in a literal, whatever the settings, and need no decoding.
    """
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"convert_from(decode('{value.encode('utf-8', 'surrogatepass').hex()}', 'hex'), 'UTF8')"


MARKERS: dict[str, type[Marker]] = {"postgresql": PostgresMarker, "sqlite": Marker, "mysql": MySQLMarker}


@lru_cache(maxsize=64)
def marker_of(dialect: str, schema: str | None, table_prefix: str | None) -> Marker:
    """The marker for these tables; see `Names.of`."""
    return MARKERS[dialect](Names.of(dialect, schema, table_prefix))
