"""Statements on the driver below a caller's SQLAlchemy connection, in its open transaction.

SQLAlchemy's own work is most of what a statement costs in Python: the driver's alone takes a quarter of that. Where
anybody listens to the connection's statements, or logs them, they still go through SQLAlchemy.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

BLOCKING = frozenset({"psycopg", "psycopg2"})
ASYNC = frozenset({"asyncpg"})
"""SQLAlchemy's names of the drivers that `execute` and `aexecute` know."""
KNOWN = ("2.0.", "2.1.")
"""Releases of SQLAlchemy whose private names are those used here. Later ones execute their statements themselves."""


def is_open_below(connection: Any, drivers: frozenset[str]) -> bool:
    """Whether a Connection has one of these drivers, an open transaction, and nobody who listens.

    Otherwise SQLAlchemy has to begin a transaction first, or to refuse the statement, or to tell of it.
    """
    dialect = connection.dialect
    if dialect.driver not in drivers or not is_known():
        return False
    transaction = connection.get_nested_transaction() or connection.get_transaction()
    if transaction is None or not transaction.is_active:
        return False
    return not (
        getattr(connection, "_echo", True)
        or getattr(connection, "_has_events", True)
        or getattr(connection.engine, "_has_events", True)
        or getattr(dialect, "_has_events", True)
    )


@cache
def is_known() -> bool:
    """Whether this SQLAlchemy is one of the `KNOWN`."""
    version: str = sys.modules["sqlalchemy"].__version__
    return version.startswith(KNOWN)


def execute(connection: Any, text: str, params: tuple[Any, ...]) -> list[Any]:
    """The rows of a statement on a Connection that `is_open_below`. Raises what SQLAlchemy would."""
    cursor = connection.connection.dbapi_connection.cursor()
    try:
        cursor.execute(text, params)
        rows: list[Any] = cursor.fetchall() if cursor.description else []
    except BaseException as error:
        _raise_as_sqlalchemy(connection, error, text, params)
        raise
    cursor.close()
    return rows


async def aexecute(connection: Any, text: str, params: tuple[Any, ...]) -> list[Any]:
    """`execute` on an AsyncConnection with asyncpg."""
    cursor = connection.sync_connection.connection.dbapi_connection.cursor()
    try:
        await cursor._prepare_and_execute(text, params)  # noqa: SLF001 - the public way takes another greenlet
        return cursor.fetchall() if cursor.description else []
    except BaseException as error:  # after a cancellation, too, SQLAlchemy closes the connection
        await connection.run_sync(_raise_as_sqlalchemy, error, text, params)
        raise


def _raise_as_sqlalchemy(connection: Any, error: BaseException, text: str, params: tuple[Any, ...]) -> None:
    """Raise the driver's error as SQLAlchemy does, which also closes a connection that is lost."""
    try:
        raise error  # noqa: TRY301 - SQLAlchemy looks at what is being handled
    except BaseException as raised:  # noqa: BLE001 - it is raised again, in any case
        connection._handle_dbapi_exception(raised, text, params, None, None)  # noqa: SLF001 - there is no public way
