"""Database URLs: choose a driver, and show a URL without its secrets."""

from __future__ import annotations

from importlib.util import find_spec

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from postroom.errors import DriverMissing, UnsupportedDatabase

_DIALECTS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
_SYNC = {"postgresql": ("psycopg", "psycopg2"), "mysql": ("pymysql",), "sqlite": ("pysqlite",)}
_ASYNC = {"postgresql": ("asyncpg", "psycopg"), "mysql": ("asyncmy", "aiomysql"), "sqlite": ("aiosqlite",)}
_MODULES = {"pysqlite": "sqlite3"}
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "aiosqlite"}
_SHOWN_OPTIONS = {
    *("application_name", "charset", "connect_timeout", "host", "mode", "port", "service", "ssl", "sslmode"),
    *("target_session_attrs", "unix_socket", "uri"),
}
"""Options that say which database it is, or how to reach it. The values of all others are hidden."""


def resolve(url: str, *, asynchronous: bool = False) -> URL:
    """Add a driver, sync or async: the one that the URL names if it fits, else the best one installed.

    Raises `UnsupportedDatabase` or `DriverMissing`.
    """
    parsed = _parse(url)
    family, _, named = parsed.drivername.partition("+")
    dialect = _DIALECTS[family]
    drivers = (_ASYNC if asynchronous else _SYNC)[dialect]
    for driver in (named, *drivers) if named in drivers else drivers:
        if find_spec(_MODULES.get(driver, driver)):
            return parsed.set(drivername=f"{dialect}+{driver}")
    kind = "an async" if asynchronous else "a"
    raise DriverMissing(
        f"{dialect} needs {kind} driver ({' or '.join(drivers)}): pip install 'postroom[{_EXTRAS[dialect]}]'"
    )


def dialect_of_url(url: str) -> str:
    """``postgresql``, ``mysql`` or ``sqlite``. Raises `UnsupportedDatabase`."""
    return _DIALECTS[_parse(url).drivername.partition("+")[0]]


def file_of(url: str) -> str | None:
    """The file of an SQLite database; None for servers, for memory, and for `file:` URIs."""
    parsed = _parse(url)
    path = parsed.database
    if dialect_of_url(url) != "sqlite" or not path or path.startswith((":memory:", "file:")):
        return None
    return path


def shown(url: URL | str) -> str:
    """The URL for people and logs, without the password and without option values that may be secret."""
    parsed = make_url(url)
    hidden = {name: value if name in _SHOWN_OPTIONS else "***" for name, value in parsed.query.items()}
    text = parsed.set(query=hidden).render_as_string(hide_password=True)
    return text.replace("%2A%2A%2A", "***").replace("%2F", "/")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise UnsupportedDatabase(
            "the database URL cannot be read (it is not shown, as it may hold a password): write "
            "sqlite:///app.db, postgresql://user:password@host:5432/name or mysql://user:password@host:3306/name"
        ) from None
    if parsed.password is not None and "@" in f"{parsed.host}{parsed.database}":  # from the password
        raise UnsupportedDatabase(
            "the database URL has more than one @ (it is not shown, as that is a part of the password): "
            "write an @ in a password as %40, and a : or / as %3A or %2F"
        )
    if parsed.drivername.partition("+")[0] not in _DIALECTS:
        known = ", ".join(f"{name}://" for name in _DIALECTS)
        raise UnsupportedDatabase(
            f"{parsed.drivername}:// is not a database that Postroom supports: use one of {known}"
        )
    return parsed
