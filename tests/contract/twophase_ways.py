"""The matrix: every way to give a participant of a two-phase commit, and what tests do with its lines."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiomysql
import asyncmy
import asyncpg
import django
import django.conf
import django.db
import psycopg_pool
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from postroom.store.sql.steps import Steps, arun, run
from postroom.store.twophase.branch_kinds import BRANCHES
from postroom.twophase.openers import opener_of
from tests.contract.connection_kinds import ACONNECT, CONNECT, DJANGO_ENGINES, libpq, mysql_options, with_driver
from tests.contract.twophase_support import new_branch
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL

    from postroom.store.twophase.branches import Branches
    from postroom.twophase.lines import Line
    from tests.contract.write_support import Databases

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """A way to give a participant. `make(URL)` is what is given; `close` ends it."""

    name: str
    database: str
    make: Callable[[URL], Any]
    write: Callable[[Any, str], Any]
    """Executes a statement on what the code gets."""
    close: Callable[[Any], Any]
    asynchronous: bool = False

    def __str__(self) -> str:
        return self.name


def nothing(_given: Any) -> None:
    """Nothing is to be closed."""


def by_text(given: Any, statement: str) -> Any:
    return given.execute(text(statement))


def url_text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def dispose(given: Any) -> Any:
    return given.dispose()


def dispose_bound(make: Any) -> Any:
    return make.kw["bind"].dispose()


SYNC = {"psycopg": "postgresql", "psycopg2": "postgresql", "pymysql": "mariadb"}
ASYNC = {"psycopg": "postgresql", "asyncpg": "postgresql", "asyncmy": "mariadb", "aiomysql": "mariadb"}


def engine(driver: str, url: URL) -> Any:
    return create_engine(with_driver(url, driver))


def async_engine(driver: str, url: URL) -> Any:
    return create_async_engine(with_driver(url, driver))


def sync_way(name: str, database: str, make: Callable[[URL], Any], close: Callable[[Any], Any] = nothing) -> Way:
    return Way(name, database, make, by_text, close)


def async_way(name: str, database: str, make: Callable[[URL], Any], close: Callable[[Any], Any] = nothing) -> Way:
    return Way(name, database, make, by_text, close, asynchronous=True)


def sqlalchemy_ways() -> Iterator[Way]:
    for driver, database in SYNC.items():
        make = partial(engine, driver)
        yield sync_way(f"Engine, {driver}", database, make, dispose)
        yield sync_way(f"sessionmaker, {driver}", database, compose(sessionmaker, make), dispose_bound)
    for driver, database in ASYNC.items():
        make = partial(async_engine, driver)
        yield async_way(f"AsyncEngine, {driver}", database, make, dispose)
        yield async_way(f"async_sessionmaker, {driver}", database, compose(async_sessionmaker, make), dispose_bound)


def compose(outer: Callable[[Any], Any], inner: Callable[[URL], Any]) -> Callable[[URL], Any]:
    return lambda url: outer(inner(url))


def by_cursor(given: Any, statement: str) -> Any:
    with given.cursor() as cursor:
        cursor.execute(statement)


async def by_async_cursor(given: Any, statement: str) -> None:
    async with given.cursor() as cursor:
        await cursor.execute(statement)


def by_asyncpg(given: Any, statement: str) -> Any:
    return given.execute(statement)


def function(driver: str, url: URL) -> Callable[[], Any]:
    return partial({**CONNECT, **ACONNECT}[driver], url)


def psycopg_sync_pool(url: URL) -> Any:
    return psycopg_pool.ConnectionPool(libpq(url), min_size=1, open=True)


async def psycopg_async_pool(url: URL) -> Any:
    pool = psycopg_pool.AsyncConnectionPool(libpq(url), min_size=1, open=False)
    await pool.open()
    return pool


async def asyncpg_pool(url: URL) -> Any:
    return await asyncpg.create_pool(libpq(url), min_size=1)


async def asyncmy_pool(url: URL) -> Any:
    return await asyncmy.create_pool(**mysql_options(url), minsize=1)


async def aiomysql_pool(url: URL) -> Any:
    return await aiomysql.create_pool(**mysql_options(url, "db"), minsize=1)


def close_pool(pool: Any) -> Any:
    return pool.close()


async def close_mysql_pool(pool: Any) -> None:
    pool.close()
    await pool.wait_closed()


def django_connection(url: URL) -> Any:
    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    connections = django.db.connections
    described = {
        "ENGINE": f"django.db.backends.{DJANGO_ENGINES[url.get_backend_name()]}",
        "NAME": url.database,
        "HOST": url.host or "",
        "PORT": url.port or "",
        "USER": url.username or "",
    }
    connections.settings |= {"bank": connections.configure_settings({"default": described})["default"]}
    return connections["bank"]


def close_django(connection: Any) -> None:
    connection.close()
    del django.db.connections["bank"]


WAYS = [
    Way("function, psycopg", "postgresql", partial(function, "psycopg"), by_cursor, nothing),
    Way("function, psycopg2", "postgresql", partial(function, "psycopg2"), by_cursor, nothing),
    Way("function, PyMySQL", "mariadb", partial(function, "PyMySQL"), by_cursor, nothing),
    *(
        Way(f"function, {driver}", database, partial(function, driver), write, nothing, asynchronous=True)
        for driver, database, write in (
            ("psycopg async", "postgresql", by_async_cursor),
            ("asyncpg", "postgresql", by_asyncpg),
            ("asyncmy", "mariadb", by_async_cursor),
            ("aiomysql", "mariadb", by_async_cursor),
        )
    ),
    Way("pool, psycopg", "postgresql", psycopg_sync_pool, by_cursor, close_pool),
    *(
        Way(f"pool, {driver}", database, make, write, close, asynchronous=True)
        for driver, database, make, write, close in (
            ("psycopg async", "postgresql", psycopg_async_pool, by_async_cursor, close_pool),
            ("asyncpg", "postgresql", asyncpg_pool, by_asyncpg, close_pool),
            ("asyncmy", "mariadb", asyncmy_pool, by_async_cursor, close_mysql_pool),
            ("aiomysql", "mariadb", aiomysql_pool, by_async_cursor, close_mysql_pool),
        )
    ),
    Way("Django, postgresql", "postgresql", django_connection, by_cursor, close_django),
    Way("Django, mariadb", "mariadb", django_connection, by_cursor, close_django),
    *(sync_way(f"URL, {database}", database, url_text) for database in ("postgresql", "mariadb")),
    *(async_way(f"URL, {database}, async", database, url_text) for database in ("postgresql", "mariadb")),
    *sqlalchemy_ways(),
]
BY_NAME = {way.name: way for way in WAYS}


class Participant:
    """A participant in a test: opens lines, and runs steps and code on them."""

    def __init__(self, way: Way, database: Database) -> None:
        self._runner = asyncio.Runner() if way.asynchronous else None
        self.way = way
        self._names = database.store.names
        made = way.make(database.url)
        self.given = self.wait(made) if inspect.iscoroutine(made) else made
        self.opener = opener_of(self.given, "bank")
        self._branches: Branches | None = None

    def open(self) -> Line:
        line: Line = self.wait(self.opener.aopen()) if self._runner else self.opener.open()
        assert line.dialect == self._names.dialect
        return line

    def run(self, line: Line, steps: Steps[T]) -> T:
        if self._runner is None:
            return run(steps, line.execute)
        return self._runner.run(arun(steps, line.execute))

    def branches(self, line: Line) -> Branches:
        if self._branches is None:
            self._branches = self.run(line, BRANCHES[line.dialect].check(self._names))
        return self._branches

    def begun(self) -> tuple[Line, Branches, str, str]:
        """A line with a branch in which the code has written a row: line, branches, the branch's id, the row's."""
        line = self.open()
        branches = self.branches(line)
        branch = self.run(line, branches.begin(new_branch(), 30))
        statement, row = business_row()
        self.write(line, statement)
        return line, branches, branch, row

    def write(self, line: Line, statement: str) -> None:
        self.wait(self.way.write(line.given, statement))

    def wait(self, result: Any) -> Any:
        if self._runner is None or not inspect.isawaitable(result):
            return result
        return self._runner.run(_awaited(result))

    def close(self) -> None:
        self.wait(self.opener.aclose()) if self._runner else self.opener.close()
        self.wait(self.way.close(self.given))
        if self._runner is not None:
            self._runner.close()


async def _awaited(result: Any) -> Any:
    return await result


@contextmanager
def participant(way: Way, databases: Databases) -> Iterator[tuple[Participant, Database]]:
    database = databases[way.database]
    with ExitStack() as stack:
        made = Participant(way, database)
        stack.callback(made.close)
        yield made, database
