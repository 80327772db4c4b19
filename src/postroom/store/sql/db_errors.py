"""What a database error means, whichever driver raised it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, TypeVar

from postroom.errors import DatabaseUnreachable, PostroomError, PrivilegeMissing, SchemaMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.steps import Steps

T = TypeVar("T")

_MOST_TRIES = 10
_UNDONE = {"40P01", "40001", 1213}
"""Deadlock and serialization failure on PostgreSQL, deadlock on MySQL: the transaction is undone and may run again."""
_LOCK_TIMEOUT = {"55P03", 1205}
_TIMEOUT = {"57014", 1969, 3024}
"""A statement took longer than the server lets it: `statement_timeout`, `max_statement_time`, `max_execution_time`."""
_REFUSED = {"54000", 1153, 1301, 1406}
"""A value exceeds a limit of the server: on MySQL, `max_allowed_packet`."""
_NO_SUCH_TABLE = {"42P01", "3F000", 1146}
_DENIED = {"42501", 1044, 1142, 1143, 1227, 1370}
_DUPLICATE_ENTRY = {"23505", 1062}
_CANNOT_WRITE = {"53100", "25006", 1021, 1290, 1836}
"""The disk is full, or the server is read-only, for instance because another one has taken over."""
_CANNOT_WRITE_SQLITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}
_ABORTED = "25P02"
_LOST_CONNECTION = {"57P01", "57P02", "57P03", "25P03", 1053, 1927, 2006, 2013, 2055}
_DRIVERS = {"MySQLdb", "aiomysql", "asyncmy", "asyncpg", "psycopg", "psycopg2", "pymysql"}
"""Drivers that connect to a server, and can lose the connection."""
_LIBRARIES = _DRIVERS | {"aiosqlite", "psycopg_pool", "sqlalchemy", "sqlite3"}


def code_of(error: BaseException) -> object:
    """The SQLSTATE on PostgreSQL, the error number on MySQL; also of an error that SQLAlchemy has wrapped."""
    original = _original(error)
    number = next(iter(original.args), None)
    if isinstance(number, int):
        return number
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


def reason(error: BaseException) -> str:
    """What the database or its driver said, in one line."""
    original = _original(error)
    said = original.args[1] if len(original.args) > 1 and isinstance(code_of(error), int) else original
    return " ".join(str(said).split()) or type(original).__name__


def _original(error: BaseException) -> BaseException:
    """The driver's error, which SQLAlchemy and Django wrap in one of their own."""
    if type(error).__module__ == "django.db.utils":
        return error.__cause__ or error
    return getattr(error, "orig", None) or error


def is_lock_timeout(error: BaseException) -> bool:
    """Waiting for another transaction's lock took too long."""
    return code_of(error) in _LOCK_TIMEOUT or "database is locked" in str(_original(error))


def is_timeout(error: BaseException) -> bool:
    """The statement took too long for the server, be it that it waited for a lock."""
    return is_lock_timeout(error) or code_of(error) in _TIMEOUT


def is_undone(error: BaseException) -> bool:
    """The database undid the transaction in favour of another: it may run again."""
    return code_of(error) in _UNDONE


def is_refused_value(error: BaseException) -> bool:
    """The database will never store this value, mostly because it is too large."""
    code = code_of(error)
    is_of_class_22 = isinstance(code, str) and code.startswith("22")  # "data exception"
    return code in _REFUSED or is_of_class_22 or "too big" in str(_original(error))


def is_unable_to_write(error: BaseException) -> bool:
    """The database answers but stores nothing, whatever the statement: its disk is full, or it is read-only."""
    of_sqlite = getattr(_original(error), "sqlite_errorcode", 0) & 0xFF  # the rest says more precisely what it was
    return of_sqlite in _CANNOT_WRITE_SQLITE or code_of(error) in _CANNOT_WRITE


def is_duplicate_entry(error: BaseException) -> bool:
    """A unique constraint was violated."""
    return code_of(error) in _DUPLICATE_ENTRY


def is_aborted(error: BaseException) -> bool:
    """PostgreSQL refuses the statement because an earlier one of the transaction failed."""
    return code_of(error) == _ABORTED


def is_lost_connection(error: BaseException) -> bool:
    """The connection broke, or the server closed it: not the statement's fault, and its outcome may be unknown."""
    if isinstance(error, DatabaseUnreachable) or getattr(error, "connection_invalidated", False):
        return True
    original = _original(error)
    code = code_of(original)
    if type(original).__module__.partition(".")[0] not in _DRIVERS:
        return False
    if code is None:  # psycopg's and asyncpg's own words for a connection that is gone
        return type(original).__name__ in {"OperationalError", "InterfaceError", "ConnectionDoesNotExistError"}
    return code in _LOST_CONNECTION or str(code).startswith("08")


def is_of_sqlite(error: BaseException) -> bool:
    """SQLite itself raised it, in this process: no connection can be lost, and nothing has happened."""
    return isinstance(_original(error), sqlite3.Error)


def is_unwritable_value(error: BaseException) -> bool:
    """The driver cannot pass a value as a parameter."""
    original = _original(error)
    return isinstance(original, ValueError) or "DataError" in [cls.__name__ for cls in type(original).__mro__]


def is_of_database(error: BaseException) -> bool:
    """The database, its driver or the network raised it, rather than our own code or bad input."""
    original = _original(error)
    if is_unwritable_value(original):
        return False
    library = type(original).__module__.partition(".")[0]
    return isinstance(original, DatabaseUnreachable | EOFError | OSError) or library in _LIBRARIES


def is_missing_table(error: BaseException) -> bool:
    return code_of(error) in _NO_SUCH_TABLE or "no such table" in str(_original(error))


def is_denied(error: BaseException) -> bool:
    """The database's user lacks a privilege."""
    return code_of(error) in _DENIED


def retrying(operation: Callable[[], Steps[T]]) -> Steps[T]:
    """Run the operation; again, at once, if the database undid it in favour of another."""
    for _ in range(_MOST_TRIES - 1):
        try:
            return (yield from operation())
        except Exception as error:
            if not is_undone(error):
                raise
    return (yield from operation())


def explained(steps: Steps[T]) -> Steps[T]:
    """The steps; a missing table or privilege raises an error that names the remedy."""
    try:
        return (yield from steps)
    except Exception as error:
        explain(error)
        raise


def explain(error: Exception) -> None:
    """Raise an error that names the remedy, if a table or a privilege is missing."""
    if isinstance(error, PostroomError):
        return
    if is_denied(error):
        raise PrivilegeMissing(
            f"the database's user lacks a privilege: {reason(error)}: `postroom schema --grants ROLE` prints "
            "what to grant"
        ) from error
    if is_missing_table(error):
        raise SchemaMissing(
            "Postroom's tables are not in this database: run `postroom init`, or check schema and table prefix"
        ) from error
