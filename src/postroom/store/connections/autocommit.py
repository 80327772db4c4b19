"""Autocommit: whether a statement would commit by itself, for each driver and for drivers below SQLAlchemy.

It would if the connection is in autocommit mode and no transaction was begun explicitly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_IDLE = 0  # libpq: no transaction
_SERVER_STATUS_IN_TRANS = 1  # MySQL's protocol
_LEGACY = -1  # sqlite3: isolation_level decides, as before Python 3.12


def of_sqlite3(connection: Any) -> bool:
    autocommit = getattr(connection, "autocommit", _LEGACY)
    begins_by_itself = connection.isolation_level is not None if autocommit == _LEGACY else not autocommit
    return not (begins_by_itself or connection.in_transaction)


def of_aiosqlite(connection: Any) -> bool:
    """What can be determined outside the connection's own thread."""
    return connection.isolation_level is None and not connection.in_transaction


async def of_raw_aiosqlite(connection: Any) -> bool:
    if connection.in_transaction:
        return False
    # Python 3.12's `autocommit` can only be read in the connection's own thread, and aiosqlite does not expose it.
    return bool(await connection._execute(of_sqlite3, connection._conn))  # noqa: SLF001 - as above


def of_psycopg(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status == _IDLE


def of_pymysql(connection: Any) -> bool:
    return connection.get_autocommit() and not connection.server_status & _SERVER_STATUS_IN_TRANS


def of_async_mysql(connection: Any) -> bool:
    return connection.get_autocommit() and not connection.get_transaction_status()


def of_django(connection: Any) -> bool:
    return not connection.in_atomic_block and connection.get_autocommit()


def of_sqlalchemy(connection: Any) -> bool:
    """For a Connection: whether SQLAlchemy autocommits, or its driver does (through `connect_args`)."""
    if connection._is_autocommit_isolation():  # noqa: SLF001 - the public way queries the database
        return below_sqlalchemy(connection) is not False
    of_driver = _BELOW_SQLALCHEMY.get(connection.dialect.driver)
    if of_driver is None or not of_driver(connection.connection.driver_connection):
        return False
    if connection.in_transaction():
        return True
    # SQLAlchemy begins a transaction at the first statement, and the application may have a listener that sends BEGIN.
    begun = connection.begin()
    if not of_driver(connection.connection.driver_connection):
        return False
    begun.rollback()
    return True


def below_sqlalchemy(connection: Any) -> bool | None:
    """For a Connection in SQLAlchemy's autocommit: whether its driver autocommits too, or None if it does not tell.

    It does not while a transaction is open that was begun as SQL, such as a branch of a two-phase commit.
    """
    driver = connection.connection.driver_connection
    if connection.dialect.driver == "asyncpg":
        return not driver.is_in_transaction()
    of_driver = _BELOW_SQLALCHEMY.get(connection.dialect.driver)
    return None if of_driver is None else of_driver(driver)


# Not asyncpg: below SQLAlchemy it has no autocommit apart from SQLAlchemy's own.
_BELOW_SQLALCHEMY: dict[str, Callable[[Any], bool]] = {
    "pysqlite": of_sqlite3,
    "aiosqlite": of_aiosqlite,
    "psycopg": of_psycopg,
    "psycopg2": of_psycopg,
    "pymysql": of_pymysql,
    "asyncmy": of_async_mysql,
    "aiomysql": of_async_mysql,
}


def is_in_transaction(connection: Any) -> Callable[[], bool] | None:
    """For an SQLAlchemy Connection: asks PostgreSQL's driver, without a round trip, whether a transaction is open.

    None for other databases and drivers. SQLAlchemy itself does not notice a COMMIT that is executed as SQL.
    """
    driver = connection.connection.driver_connection
    if connection.dialect.driver in {"psycopg", "psycopg2"}:
        return lambda: bool(driver.info.transaction_status != _IDLE)
    if connection.dialect.driver == "asyncpg":
        is_open: Callable[[], bool] = driver.is_in_transaction
        return is_open
    return None
