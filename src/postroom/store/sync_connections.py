"""The connection kinds of sync drivers: which dialect, is a transaction open, run a statement.

No driver is imported here: who hands in a connection has imported its driver.
"""

from __future__ import annotations

import sys
from typing import Any

from postroom.errors import UnsupportedConnection
from postroom.store.steps import ParamStyle, Query, Result, render

_IDLE = 0  # libpq: connected, no transaction
_SERVER_STATUS_IN_TRANS = 1  # MySQL's protocol

_PARAM_STYLES: dict[str, ParamStyle] = {
    "qmark": "qmark",
    "format": "format",
    "pyformat": "format",
    "numeric_dollar": "numeric_dollar",
}
_DIALECT_NAMES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


class Kind:
    """One kind of connection. `connection` is what the caller handed in."""

    dialect: str
    style: ParamStyle

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def autocommits(self) -> bool:
        """Whether a statement would commit by itself, because no transaction is open and none will be begun."""
        raise NotImplementedError

    remedy = "open a transaction first"


class SyncKind(Kind):
    def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        cursor = self._cursor()
        try:
            cursor.execute(text, tuple(query.params[name] for name in order))
            rows = cursor.fetchall() if cursor.description else ()
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()

    def _cursor(self) -> Any:
        """A cursor that gives plain tuples, whatever the caller has set for its own."""
        raise NotImplementedError


class Sqlite3(SyncKind):
    dialect = "sqlite"
    style = "qmark"
    remedy = "execute BEGIN first, or leave isolation_level at its default, where the first write begins a transaction"

    def autocommits(self) -> bool:
        autocommit = getattr(self.connection, "autocommit", -1)  # Python 3.12; -1 is the legacy mode
        begins_by_itself = self.connection.isolation_level is not None if autocommit == -1 else not autocommit
        return not (begins_by_itself or self.connection.in_transaction)

    def _cursor(self) -> Any:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor


class Psycopg(SyncKind):
    dialect = "postgresql"
    style = "format"
    remedy = "use `with connection.transaction():`, or a connection without autocommit"

    def autocommits(self) -> bool:
        return bool(self.connection.autocommit) and self.connection.info.transaction_status == _IDLE

    def _cursor(self) -> Any:
        return self.connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row)


class Psycopg2(Psycopg):
    remedy = "set connection.autocommit = False, and use `with connection:`"

    def _cursor(self) -> Any:
        return self.connection.cursor(cursor_factory=sys.modules["psycopg2"].extensions.cursor)


class PyMySQL(SyncKind):
    dialect = "mysql"
    style = "format"
    remedy = "call connection.begin() first, or connect with autocommit=False"

    def autocommits(self) -> bool:
        in_transaction = self.connection.server_status & _SERVER_STATUS_IN_TRANS
        return self.connection.get_autocommit() and not in_transaction

    def _cursor(self) -> Any:
        return self.connection.cursor(sys.modules["pymysql"].cursors.Cursor)


class Django(SyncKind):
    remedy = "use `with transaction.atomic():`"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = connection.vendor
        self.style = "qmark" if connection.vendor == "sqlite" else "format"

    def autocommits(self) -> bool:
        return not self.connection.in_atomic_block and self.connection.get_autocommit()

    def _cursor(self) -> Any:
        self.connection.ensure_connection()
        return self.connection.connection.cursor()


class SQLAlchemyConnection(SyncKind):
    remedy = "use `with engine.begin() as connection:` on an engine without isolation_level='AUTOCOMMIT'"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect, self.style = of_sqlalchemy(connection)

    def autocommits(self) -> bool:
        return sqlalchemy_autocommits(self.connection)

    def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        result = self.connection.exec_driver_sql(text, tuple(query.params[name] for name in order))
        return Result(result.fetchall() if result.returns_rows else (), result.rowcount)


class SQLAlchemySession(SQLAlchemyConnection):
    remedy = "bind the session to an engine without isolation_level='AUTOCOMMIT'"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection.connection())


def of_sqlalchemy(connection: Any) -> tuple[str, ParamStyle]:
    dialect = connection.dialect
    if dialect.name not in _DIALECT_NAMES or dialect.paramstyle not in _PARAM_STYLES:
        raise UnsupportedConnection(
            f"SQLAlchemy's {dialect.name}+{dialect.driver} is not supported: use PostgreSQL, MySQL/MariaDB or SQLite"
        )
    return _DIALECT_NAMES[dialect.name], _PARAM_STYLES[dialect.paramstyle]


def sqlalchemy_autocommits(connection: Any) -> bool:
    if connection._is_autocommit_isolation():  # noqa: SLF001 - the public way asks the database
        return True
    driver = connection.connection.driver_connection
    # A driver that was told to autocommit behind SQLAlchemy's back (psycopg's connect_args={"autocommit": True}).
    return getattr(driver, "autocommit", False) is True and driver.info.transaction_status == _IDLE
