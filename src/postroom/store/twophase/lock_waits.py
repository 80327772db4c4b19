"""A transaction that waits at most a second for others' locks, whatever the limit of its connection."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.operations import Operations

T = TypeVar("T")


def waiting_briefly(operations: Operations, operation: Callable[[], Steps[T]]) -> Steps[T]:
    """Run the operation in a transaction of its own. It fails if it waits for longer than a second."""
    if operations.dialect.name == "postgresql":
        return (yield from operations.transaction(_briefly_on_postgresql, operation))
    restore = yield from (_shorten_on_mysql() if operations.dialect.name == "mysql" else _shorten_on_sqlite())
    try:
        result = yield from operations.transaction(operation)
    except Exception:
        with suppress(Exception):  # the connection may be broken
            yield restore
        raise
    yield restore
    return result


def _briefly_on_postgresql(operation: Callable[[], Steps[T]]) -> Steps[T]:
    yield Query("SET LOCAL lock_timeout = '1s'")
    return (yield from operation())


def _shorten_on_mysql() -> Steps[Query]:
    name = "innodb_lock_wait_timeout"
    yield Query(f"SET @postroom_lock_wait = @@SESSION.{name}, SESSION {name} = 1")
    return Query(f"SET SESSION {name} = @postroom_lock_wait")


def _shorten_on_sqlite() -> Steps[Query]:
    found = yield Query("PRAGMA busy_timeout")
    yield Query("PRAGMA busy_timeout = 1000")
    return Query(f"PRAGMA busy_timeout = {int(found.rows[0][0])}")
