"""Transactions that begin with an inbox mark, on the connections of PostgreSQL's drivers.

A round trip begins one and marks the message, and another checks that the mark is still there and commits. Otherwise
each of these takes two.
"""

from __future__ import annotations

import sys
from typing import Any

from postroom.store.inbox import COMMIT_MARKED

_COMMIT = COMMIT_MARKED.encode()


def begin(connection: Any, statements: str) -> bool:
    """Begin a transaction on a connection of psycopg; returns whether the mark is new."""
    return bool(_executed(connection, statements.encode()).command_tuples)


def commit(connection: Any) -> None:
    """Commit it, unless it was rolled back meanwhile: then raises an error that `is_not_marked`."""
    _executed(connection, _COMMIT)


def _executed(connection: Any, statements: bytes) -> Any:
    """Execute several statements, which psycopg's cursors would send after a BEGIN of their own."""
    psycopg = sys.modules["psycopg"]
    result = connection.pgconn.exec_(statements)
    if result.status in {psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK}:
        return result
    if connection.pgconn.status == psycopg.pq.ConnStatus.BAD:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
    raise psycopg.errors.error_from_result(result)


async def abegin(connection: Any, statements: str) -> bool:
    """`begin` on a connection of asyncpg."""
    status: str = await connection.execute(statements)
    # So that `connection.transaction()` makes a savepoint: asyncpg refuses it in a transaction that it did not begin.
    connection._top_xact = connection.transaction()  # noqa: SLF001 - as above
    return status != "INSERT 0 0"


async def acommit(connection: Any) -> None:
    """`commit` on a connection of asyncpg."""
    connection._top_xact = None  # noqa: SLF001 - as `abegin` has set it
    await connection.execute(COMMIT_MARKED)


async def aroll_back(connection: Any) -> None:
    """Roll back on a connection of asyncpg what `abegin` began."""
    connection._top_xact = None  # noqa: SLF001 - as `abegin` has set it
    if connection.is_in_transaction():
        await connection.execute("ROLLBACK")
