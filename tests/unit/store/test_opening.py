from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url

from postroom.errors import DatabaseUnreachable, UnsupportedDatabase
from postroom.store.connections import connector, opening
from postroom.store.connections.connector import Connector
from postroom.store.connections.kept import MOST, AsyncKeptConnections, KeptConnections
from postroom.store.connections.opening import Options, for_driver, options_of, to_the_end
from postroom.store.connections.urls import DatabaseUrl, parse, shown, with_driver

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE = 10
URLS = [
    "postgresql://",
    "postgresql:///shop",
    "postgresql://db",
    "postgresql://u:p%40s%2Fs@db:5432/shop",
    "postgresql+asyncpg://u@db/a%20shop?ssl=require&ssl=prefer&empty=",
    "postgres://u:@[fe80::1%25eth0]:6432/shop?application_name=a+b%26c",
    "postgresql://u:p@/shop?host=/run/pg&port=5433",
    "postgresql://u:p@/shop?host=one:5432&host=two:5433&target_session_attrs=primary",
    "postgresql://u:p@/shop?host=one,two&port=1,2",
    "postgresql://us@er:p@db/shop",
    "mysql://u:p@db:3306/shop",
    "mariadb+asyncmy://u:p@db/shop?charset=utf8mb4&connect_timeout=5&ssl_ca=/ca.pem&ssl_check_hostname=false",
    "mysql://db/shop?unix_socket=/run/my",
    "sqlite://",
    "sqlite:///app.db",
    "sqlite:///current/../app.db",
    "sqlite:////srv/a%20b/app.db",
    "sqlite:///file:app.db?mode=ro&uri=true",
    "sqlite:///app.db?timeout=5",
]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_read_as_sqlalchemy_reads_it(url: str) -> None:
    parsed, theirs = parse(url), make_url(url)
    assert tuple(parsed) == tuple(theirs)
    assert parsed.for_sqlalchemy() == theirs


@pytest.mark.parametrize("url", ["", "app.db", "postgresql", "postgresql://db:port/shop", "oracle://db/shop"])
def test_what_is_no_url_of_a_database_is_refused(url: str) -> None:
    with pytest.raises(UnsupportedDatabase):
        parse(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:hunter2@db/shop?connect_timeout=soon", "shop?connect_timeout=soon are not valid: invalid literal"),
        ("postgresql://u:hunter2@/shop?host=one,two&port=1", "number of hosts and ports don't match"),
        ("sqlite://u:hunter2@db/app.db", "sqlite+pysqlite://u:***@db/app.db are not valid: Invalid SQLite URL"),
    ],
)
def test_options_that_cannot_be_read_are_refused_in_one_line(url: str, problem: str) -> None:
    with pytest.raises(UnsupportedDatabase) as raised:
        options_of(with_driver(url))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hunter2" not in str(raised.value)


DRIVERS = {
    **dict.fromkeys(("postgresql", "postgres"), ("asyncpg", "psycopg", "psycopg2")),
    **dict.fromkeys(("mysql", "mariadb"), ("pymysql", "asyncmy", "aiomysql")),
    "sqlite": ("pysqlite",),
}


@pytest.mark.parametrize(("url", "driver"), [(url, driver) for url in URLS for driver in DRIVERS[parse(url).dialect]])
def test_drivers_get_the_arguments_that_sqlalchemy_would_give_them(url: str, driver: str) -> None:
    dialect = {"postgres": "postgresql", "mariadb": "mysql"}.get(parse(url).dialect, parse(url).dialect)
    resolved = parse(url)._replace(drivername=f"{dialect}+{driver}")
    theirs = resolved.for_sqlalchemy()
    positional, named = create_engine(theirs).dialect.create_connect_args(theirs)
    named.pop("context", None)  # how psycopg adapts SQLAlchemy's own types
    found = options_of(resolved)
    assert list(found.positional) == positional
    assert {name: value for name, value in found.named.items() if name != "context"} == for_driver(named)


def test_a_url_is_shown_without_what_may_be_secret() -> None:
    assert shown(parse("postgres://u:@[fe80::1]:6432/a%20shop")) == "postgres://u:***@[fe80::1]:6432/a shop"
    assert shown("mysql+pymysql://:hunter2@db") == "mysql+pymysql://:***@db"
    assert shown("postgresql://db/shop?host=one:1&host=two:2&x=y") == (
        "postgresql://db/shop?host=one%3A1&host=two%3A2&x=***"
    )


def test_what_a_traceback_may_show_of_a_url_holds_no_secrets() -> None:
    url = with_driver("mysql://u:hunter2@db/shop?ssl_key=hunter3")
    assert "hunter" not in f"{url!r} {url} {options_of(url)!r} {options_of(url)}"


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_cancelled_task_waits_for_its_connection_to_close_unless_the_server_hangs(
    monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    monkeypatch.setattr(opening, "CLOSING", 0.01 if hangs else PATIENCE)
    closing, answer = asyncio.Event(), asyncio.Event()
    closed: list[bool] = []

    async def close() -> None:
        closing.set()
        await answer.wait()
        closed.append(True)

    task = asyncio.create_task(to_the_end(close()))
    await closing.wait()
    task.cancel()
    if not hangs:
        asyncio.get_running_loop().call_later(0.01, answer.set)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done == {task}
    assert task.cancelled()
    assert closed == ([] if hangs else [True])
    answer.set()
    await asyncio.sleep(0)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert closed == [True]


class OneConnection:
    """Of an async driver; it says whether it was closed."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_connection_is_closed_if_the_task_that_opens_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = OneConnection()

    async def connect(*_: object) -> OneConnection:
        return opened

    async def cancelled(_: object) -> bool:
        raise asyncio.CancelledError

    monkeypatch.setattr(opening, "aconnect", connect)
    monkeypatch.setattr(connector, "ais_direct", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await Connector(parse("postgresql+asyncpg://db/shop"), None).aconnect()
    assert opened.closed


def test_connections_are_kept_up_to_a_number_and_one_that_is_dead_is_replaced(tmp_path: Any) -> None:
    kept = KeptConnections(Connector(with_driver(f"sqlite:///{tmp_path}/app.db"), None))
    some = [kept.take() for _ in range(MOST + 1)]
    for one in some:
        kept.give_back(one)
    assert [is_open(one) for one in some] == [True] * MOST + [False]
    some[MOST - 1].close()  # as if the server had ended it
    assert kept.take() is some[MOST - 2]
    kept.close()
    assert not any(map(is_open, some[: MOST - 2]))
    kept.give_back(some[MOST - 2])  # which was in use meanwhile
    assert not is_open(some[MOST - 2])


async def test_a_connection_on_which_a_transaction_was_left_open_is_not_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    kept = KeptConnections(Connector(with_driver(url), None))
    left = kept.take()
    left.execute("BEGIN")
    kept.give_back(left)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        left.execute("SELECT 1")
    async_kept = AsyncKeptConnections(Connector(with_driver(url, asynchronous=True), None))
    left = await async_kept.take()
    await left.execute("BEGIN")
    await async_kept.give_back(left)
    with pytest.raises(ValueError, match="no active connection"):
        await left.execute("SELECT 1")


async def test_a_kept_connection_of_an_async_driver_is_closed_if_the_task_that_takes_it_is_cancelled(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = AsyncKeptConnections(Connector(with_driver(f"sqlite:///{tmp_path}/app.db", asynchronous=True), None))
    one = await kept.take()
    await kept.give_back(one)
    asked, never = asyncio.Event(), asyncio.Event()

    class Hanging:
        def __init__(self, _: object) -> None: ...

        async def execute(self, _: object) -> None:
            asked.set()
            await never.wait()

    monkeypatch.setattr("postroom.store.connections.kept.driver_kind", Hanging)
    task = asyncio.create_task(kept.take())
    await asked.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert not one.is_alive() if hasattr(one, "is_alive") else one._connection is None


def test_what_a_driver_raises_hides_the_urls_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_driver: str, options: Options) -> None:
        raise TypeError(f"unknown option {[*options.named][-1]}")

    monkeypatch.setattr(opening, "connect", refuse)
    url = DatabaseUrl("postgresql+psycopg", "u", "hunter2", "db", None, "shop", {"nosuch": "hunter3"})
    with pytest.raises(DatabaseUnreachable) as raised:
        Connector(url, None).connect()
    assert "unknown option nosuch" in str(raised.value)
    assert "postgresql+psycopg://u:***@db/shop?nosuch=***" in str(raised.value)


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg", "pymysql"])
def test_an_option_that_the_driver_does_not_have_is_named(driver: str) -> None:
    dialect = "mysql" if driver == "pymysql" else "postgresql"
    with pytest.raises(DatabaseUnreachable, match=r"option \W?nosuch") as raised:
        Connector(with_driver(f"{dialect}+{driver}://u:hunter2@127.0.0.1:1/shop?nosuch=hunter3"), None).connect()
    assert "hunter" not in str(raised.value)


@pytest.mark.parametrize(
    ("driver", "remedy"),
    [
        ("asyncpg", ": for libpq's options, such as sslmode, write postgresql+psycopg://"),
        ("asyncmy", ""),
        ("aiomysql", ""),
    ],
)
async def test_an_option_that_an_async_driver_does_not_have_is_named_with_the_remedy(driver: str, remedy: str) -> None:
    dialect = "postgresql" if driver == "asyncpg" else "mysql"
    url = with_driver(f"{dialect}+{driver}://u:hunter2@127.0.0.1:1/shop?nosuch=hunter3", asynchronous=True)
    with pytest.raises(DatabaseUnreachable) as raised:
        await Connector(url, None).aconnect()
    assert str(raised.value) == (
        f"the database {dialect}+{driver}://u:***@127.0.0.1:1/shop?nosuch=*** cannot be reached: "
        f"the driver {driver} has no option 'nosuch'{remedy}"
    )


def test_a_database_whose_settings_cannot_be_made_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "app.db").write_text("no database")
    url = with_driver(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(DatabaseUnreachable, match=r"app\.db cannot be reached: file is not a database"):
        Connector(url, None).connect()


async def test_an_async_driver_reports_it_as_well(tmp_path: Path) -> None:
    (tmp_path / "app.db").write_text("no database")
    url = with_driver(f"sqlite:///{tmp_path}/app.db", asynchronous=True)
    with pytest.raises(DatabaseUnreachable, match=r"app\.db cannot be reached: file is not a database"):
        await Connector(url, None).aconnect()


def is_open(connection: sqlite3.Connection) -> bool:
    with suppress(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
        return True
    return False
