"""Adapters for users' async connections, the counterparts of `sync_kinds`."""

from __future__ import annotations

import sys

from postroom.store.connections import autocommit, past_sqlalchemy
from postroom.store.connections.sync_kinds import (
    Kind,
    SQLAlchemySession,
    Sqlite3,
    of_sqlalchemy,
    parameters_hidden,
)
from postroom.store.sql.steps import Query, Result, render


class AsyncKind(Kind):
    async def autocommits(self) -> bool:
        """Whether a statement would commit by itself, because no transaction is open and none will be begun.

        Asked first: `dialect` and the rest may not be known before.
        """
        raise NotImplementedError

    async def execute(self, query: Query) -> Result:
        raise NotImplementedError


class Asyncpg(AsyncKind):
    dialect = "postgresql"
    style = "numeric_dollar"
    remedy = "use `async with connection.transaction():`"

    async def autocommits(self) -> bool:
        return not self.connection.is_in_transaction()

    async def execute(self, query: Query) -> Result:
        if query.script:
            await self.connection.execute(query.text)
            return Result(())
        text, order = render(query.text, self.style)
        rows = await self.connection.fetch(text, *map(query.params.__getitem__, order))
        return Result(rows)


class PsycopgAsync(AsyncKind):
    dialect = "postgresql"
    style = "format"
    remedy = "use `async with connection.transaction():`, or a connection without autocommit"

    async def autocommits(self) -> bool:
        return autocommit.of_psycopg(self.connection)

    async def execute(self, query: Query) -> Result:
        psycopg = sys.modules["psycopg"]
        async with psycopg.AsyncCursor(self.connection, row_factory=psycopg.rows.tuple_row) as cursor:
            if query.script:
                await cursor.execute(query.text, prepare=False)  # only one statement at a time can be prepared
                return Result(())
            text, order = render(query.text, self.style)
            await cursor.execute(text, tuple(map(query.params.__getitem__, order)))
            return Result(await cursor.fetchall() if cursor.description else ())


class Aiosqlite(AsyncKind):
    dialect = "sqlite"
    style = "qmark"
    remedy = Sqlite3.remedy

    async def autocommits(self) -> bool:
        return await autocommit.of_raw_aiosqlite(self.connection)

    async def execute(self, query: Query) -> Result:
        # At once in the connection's own thread: cursor, statement, rows and closing would be a round trip each. In a
        # function without arguments, because aiosqlite logs those.
        connection = self.connection
        in_thread = Sqlite3(connection._conn)  # noqa: SLF001 - sqlite3's
        done: Result = await connection._execute(lambda: in_thread.execute(query))  # noqa: SLF001 - all of it calls this
        return done


class AsyncMySQL(AsyncKind):
    """asyncmy and aiomysql, which share an interface."""

    dialect = "mysql"
    style = "format"
    remedy = "await connection.begin() first, or connect with autocommit=False"
    library: str

    async def autocommits(self) -> bool:
        return autocommit.of_async_mysql(self.connection)

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        plain = sys.modules[self.library].cursors.Cursor
        async with self.connection.cursor(plain) as cursor:
            await cursor.execute(text, tuple(map(query.params.__getitem__, order)))
            return Result(await cursor.fetchall() if cursor.description else (), cursor.rowcount)


class Asyncmy(AsyncMySQL):
    library = "asyncmy"


class Aiomysql(AsyncMySQL):
    library = "aiomysql"


class SQLAlchemyAsyncConnection(AsyncKind):
    remedy = "use `async with engine.begin() as connection:` on an engine without isolation_level='AUTOCOMMIT'"

    async def autocommits(self) -> bool:
        self.dialect, self.style = of_sqlalchemy(self.connection)
        connection = self.connection.sync_connection
        if connection is not None and connection.in_transaction():  # then nothing is sent to find out
            return autocommit.of_sqlalchemy(connection)
        return bool(await self.connection.run_sync(autocommit.of_sqlalchemy))

    async def execute(self, query: Query) -> Result:
        text, order = render(query.text, self.style)
        params = tuple(map(query.params.__getitem__, order))
        with parameters_hidden():
            if past_sqlalchemy.is_open_below(self.connection.sync_connection, past_sqlalchemy.ASYNC):
                return Result(await past_sqlalchemy.aexecute(self.connection, text, params))
            result = await self.connection.exec_driver_sql(text, params)
        return Result(result.fetchall() if result.returns_rows else ())


class SQLAlchemyAsyncSession(SQLAlchemyAsyncConnection):
    remedy = SQLAlchemySession.remedy

    async def autocommits(self) -> bool:
        self.connection = await self.connection.connection()
        return await super().autocommits()
