"""Run a check's statements in one transaction that the server itself ends when it takes too long."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from postroom.store.sql.dialect import text
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

T = TypeVar("T")


def limited(names: Names, seconds: float, steps: Steps[T]) -> Steps[T]:
    """The steps, none of whose statements runs longer. SQLite has no such limit."""
    match names.dialect:
        case "postgresql":
            return (yield from _on_postgresql(seconds, steps))
        case "mysql":
            [[version]] = (yield Query("SELECT VERSION()")).rows
            is_mariadb = "mariadb" in text(version).lower()
            limit = f"max_statement_time = {seconds:g}" if is_mariadb else f"max_execution_time = {seconds * 1000:.0f}"
            yield Query(f"SET SESSION {limit}")
            return (yield from steps)
        case _:
            return (yield from steps)


def _on_postgresql(seconds: float, steps: Steps[T]) -> Steps[T]:
    # In a transaction, so that a pooler gives the setting to nobody else.
    yield Query("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        yield Query(f"SET LOCAL statement_timeout = {seconds * 1000:.0f}")
        return (yield from steps)
    finally:
        with suppress(Exception):  # the connection may be gone, and nothing was written
            yield Query("ROLLBACK")
