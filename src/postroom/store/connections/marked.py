"""Transactions that begin with an inbox mark, on the connections of PostgreSQL's drivers.

A round trip begins one and marks the message; the next checks that the mark is still there, commits, and begins the one
behind it. Otherwise each of these takes a round trip or two.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from postroom.store.inbox import COMMIT_MARKED

_COMMIT = COMMIT_MARKED.encode()


def begin(connection: Any, statements: str) -> bool:
    """Begin a transaction on a connection of psycopg; returns whether the mark is new."""
    return bool(_executed(connection, statements.encode()).command_tuples)


def commit(connection: Any) -> None:
    """Commit it, unless it was rolled back meanwhile: then raises an error that `is_not_marked`."""
    _executed(connection, _COMMIT)


def commit_and_begin(connection: Any, statements: str) -> bool:
    """`commit`, and `begin` the next one. If that raises, `has_row` can tell whether the first was committed."""
    return begin(connection, f"{COMMIT_MARKED}; {statements}")


def has_row(connection: Any, statement: str) -> bool:
    """Roll back what is open, and whether the statement finds something; False if the connection is lost."""
    with suppress(Exception):
        connection.rollback()
        return bool(_executed(connection, statement.encode()).ntuples)
    return False


def is_nested(connection: Any) -> bool:
    """Whether a block of psycopg's `connection.transaction()` was entered and not left."""
    return bool(getattr(connection, "_num_transactions", 0))


def _executed(connection: Any, statements: bytes) -> Any:
    """Execute several statements, which psycopg's cursors would send after a BEGIN of their own."""
    psycopg = sys.modules["psycopg"]
    result = connection.pgconn.exec_(statements)
    if result.status in {psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK}:
        return result
    if connection.pgconn.status == psycopg.pq.ConnStatus.BAD:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
    raise psycopg.errors.error_from_result(result)


def nest(connection: Any) -> None:
    """Have `connection.transaction()` of asyncpg make savepoints until `acommit` or `aroll_back`.

    It refuses to, in a transaction that it did not begin.
    """
    connection._top_xact = connection.transaction()  # noqa: SLF001 - as above


async def abegin(connection: Any, statements: str) -> bool:
    """`begin` on a connection of asyncpg."""
    status: str = await connection.execute(statements)
    return status != "INSERT 0 0"


async def acommit(connection: Any) -> None:
    """`commit` on a connection of asyncpg."""
    connection._top_xact = None  # noqa: SLF001 - as `nest` has set it
    await connection.execute(COMMIT_MARKED)


async def acommit_and_begin(connection: Any, statements: str) -> bool:
    """`commit_and_begin` on a connection of asyncpg."""
    return await abegin(connection, f"{COMMIT_MARKED}; {statements}")


async def aroll_back(connection: Any) -> None:
    """Roll back on a connection of asyncpg what `abegin` began. One that cannot is closed.

    Even if it does not seem to be in a transaction: after a cancellation, it has not heard yet that one was begun.
    """
    connection._top_xact = None  # noqa: SLF001 - as `nest` has set it
    try:
        await connection.execute("ROLLBACK")
    except BaseException:
        connection.terminate()
        raise


async def ahas_row(connection: Any, statement: str) -> bool:
    """`has_row` on a connection of asyncpg."""
    with suppress(Exception):
        await aroll_back(connection)
        return await connection.fetchrow(statement) is not None
    return False
