"""The connection kinds of async drivers, beside their sync twins in `sync_connections`."""

from __future__ import annotations

import sys

from postroom.store.steps import Query, Result, render
from postroom.store.sync_connections import (
    Kind,
    Psycopg,
    SQLAlchemySession,
    Sqlite3,
    of_sqlalchemy,
    sqlalchemy_autocommits,
)


class AsyncKind(Kind):
    async def prepare(self) -> None:
        """What must be awaited before `dialect` and `autocommits` can be asked."""

    async def execute(self, query: Query) -> Result:
        raise NotImplementedError


class Asyncpg(AsyncKind):
    dialect = "postgresql"
    style = "numeric_dollar"
    remedy = "use `async with connection.transaction():`"

    def autocommits(self) -> bool:
        return not self.connection.is_in_transaction()

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        rows = await self.connection.fetch(text, *(query.params[name] for name in order))
        return Result(rows, len(rows))


class PsycopgAsync(AsyncKind):
    dialect = "postgresql"
    style = "format"
    remedy = "use `async with connection.transaction():`, or a connection without autocommit"

    autocommits = Psycopg.autocommits

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        async with self.connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            await cursor.execute(text, tuple(query.params[name] for name in order))
            return Result(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


class Aiosqlite(AsyncKind):
    dialect = "sqlite"
    style = "qmark"
    remedy = Sqlite3.remedy

    def autocommits(self) -> bool:
        return self.connection.isolation_level is None and not self.connection.in_transaction

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(text, tuple(query.params[name] for name in order))
            return Result(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


class AsyncMySQL(AsyncKind):
    """asyncmy and aiomysql, which share an interface."""

    dialect = "mysql"
    style = "format"
    remedy = "await connection.begin() first, or connect with autocommit=False"

    def autocommits(self) -> bool:
        return self.connection.get_autocommit() and not self.connection.get_transaction_status()

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        library = sys.modules[type(self.connection).__module__.partition(".")[0]]
        async with self.connection.cursor(library.cursors.Cursor) as cursor:
            await cursor.execute(text, tuple(query.params[name] for name in order))
            return Result(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


class SQLAlchemyAsyncConnection(AsyncKind):
    remedy = "use `async with engine.begin() as connection:` on an engine without isolation_level='AUTOCOMMIT'"

    async def prepare(self) -> None:
        self.dialect, self.style = of_sqlalchemy(self.connection.sync_connection)

    def autocommits(self) -> bool:
        return sqlalchemy_autocommits(self.connection.sync_connection)

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        result = await self.connection.exec_driver_sql(text, tuple(query.params[name] for name in order))
        return Result(result.fetchall() if result.returns_rows else (), result.rowcount)


class SQLAlchemyAsyncSession(SQLAlchemyAsyncConnection):
    remedy = SQLAlchemySession.remedy

    async def prepare(self) -> None:
        self.connection = await self.connection.connection()
        await super().prepare()
