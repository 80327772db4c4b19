"""Adapters for users' sync connections: their dialect, whether they autocommit, and how to run a statement.

No driver is imported here: a caller that has a connection has imported its driver.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroom.errors import UnsupportedConnection
from postroom.store.connections import autocommit, past_sqlalchemy
from postroom.store.sql.steps import ParamStyle, Query, Result, render

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAM_STYLES: dict[str, ParamStyle] = {
    "qmark": "qmark",
    "format": "format",
    "pyformat": "format",
    "numeric_dollar": "numeric_dollar",
}
_DIALECT_NAMES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


class Kind:
    """Adapter for one kind of connection. `connection` is the caller's."""

    dialect: str
    style: ParamStyle
    remedy: str
    """How to open a transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection


class SyncKind(Kind):
    def autocommits(self) -> bool:
        """Whether a statement would commit by itself, because no transaction is open and none will be begun."""
        raise NotImplementedError

    def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        cursor = self._cursor()
        try:
            cursor.execute(text, tuple(map(query.params.__getitem__, order)))
            rows = cursor.fetchall() if cursor.description else ()
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()

    def _cursor(self) -> Any:
        """A cursor that returns plain tuples, whatever the caller has configured."""
        raise NotImplementedError


class Sqlite3(SyncKind):
    dialect = "sqlite"
    style = "qmark"
    remedy = "execute BEGIN first, or leave isolation_level at its default, where the first write begins a transaction"

    def autocommits(self) -> bool:
        return autocommit.of_sqlite3(self.connection)

    def execute(self, query: Query) -> Result:
        try:
            return super().execute(query)
        except Exception as error:
            if not is_foreign_text(query, error):
                raise
        kept = self.connection.text_factory
        self.connection.text_factory = any_text
        try:
            return super().execute(query)
        finally:
            self.connection.text_factory = kept

    def _cursor(self) -> Any:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor


class Psycopg(SyncKind):
    dialect = "postgresql"
    style = "format"
    remedy = "use `with connection.transaction():`, or a connection without autocommit"

    def autocommits(self) -> bool:
        return autocommit.of_psycopg(self.connection)

    def execute(self, query: Query) -> Result:
        if not query.script:
            return super().execute(query)
        self._run_script(query.text)
        return Result(())

    def _run_script(self, text: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(text, prepare=False)  # only one statement at a time can be prepared

    def _cursor(self) -> Any:
        psycopg = sys.modules["psycopg"]
        return psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row)


class Psycopg2(Psycopg):
    remedy = "set connection.autocommit = False, and use `with connection:`"

    def _run_script(self, text: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(text)

    def _cursor(self) -> Any:
        return self.connection.cursor(cursor_factory=sys.modules["psycopg2"].extensions.cursor)


class PyMySQL(SyncKind):
    dialect = "mysql"
    style = "format"
    remedy = "call connection.begin() first, or connect with autocommit=False"

    def autocommits(self) -> bool:
        return autocommit.of_pymysql(self.connection)

    def _cursor(self) -> Any:
        return self.connection.cursor(sys.modules["pymysql"].cursors.Cursor)


class Django(SyncKind):
    remedy = "use `with transaction.atomic():`"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect = connection.vendor
        if self.dialect not in _DIALECT_NAMES:
            raise UnsupportedConnection(
                f"Django's {self.dialect} is not supported: use PostgreSQL, MySQL/MariaDB or SQLite"
            )
        self.style = "qmark" if self.dialect == "sqlite" else "format"

    def autocommits(self) -> bool:
        return autocommit.of_django(self.connection)

    def execute(self, query: Query) -> Result:
        with self.connection.wrap_database_errors:  # raise Django's exceptions, as its own cursors do
            return super().execute(query)

    def _cursor(self) -> Any:
        self.connection.ensure_connection()
        return self.connection.connection.cursor()


class SQLAlchemyConnection(SyncKind):
    remedy = "use `with engine.begin() as connection:` on an engine without isolation_level='AUTOCOMMIT'"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self.dialect, self.style = of_sqlalchemy(connection)

    def autocommits(self) -> bool:
        return autocommit.of_sqlalchemy(self.connection)

    def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        params = tuple(map(query.params.__getitem__, order))
        with parameters_hidden():
            if past_sqlalchemy.is_open_below(self.connection, past_sqlalchemy.BLOCKING):
                return Result(past_sqlalchemy.execute(self.connection, text, params))
            result = self.connection.exec_driver_sql(text, params)
        return Result(result.fetchall() if result.returns_rows else ())


class SQLAlchemySession(SQLAlchemyConnection):
    remedy = "bind the session to an engine without isolation_level='AUTOCOMMIT'"

    def __init__(self, connection: Any) -> None:
        super().__init__(connection.connection())


def any_text(stored: bytes) -> str:
    """Decode text from SQLite, which also stores invalid UTF-8; such bytes become surrogates."""
    return stored.decode("utf-8", "surrogateescape")


def is_foreign_text(query: Query, error: Exception) -> bool:
    """Whether a query failed because a text is not UTF-8: one such row must not hide all others."""
    return "Could not decode to UTF-8" in str(error) and query.text.lstrip().startswith("SELECT")


def of_sqlalchemy(connection: Any) -> tuple[str, ParamStyle]:
    """Dialect and parameter style of an SQLAlchemy connection."""
    dialect = connection.dialect
    if dialect.name not in _DIALECT_NAMES or dialect.paramstyle not in _PARAM_STYLES:
        raise UnsupportedConnection(
            f"SQLAlchemy's {dialect.name}+{dialect.driver} is not supported: use PostgreSQL, MySQL/MariaDB or SQLite"
        )
    return _DIALECT_NAMES[dialect.name], _PARAM_STYLES[dialect.paramstyle]


@contextmanager
def parameters_hidden() -> Iterator[None]:
    """Hide parameters in SQLAlchemy's errors: they contain the payload."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "hide_parameters"):
            error.hide_parameters = True
        raise
