"""Database URLs: read them as SQLAlchemy does, choose a driver, and show a URL without its secrets."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from postroom.errors import DriverMissing, UnsupportedDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import URL

_DIALECTS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
_SYNC = {"postgresql": ("psycopg", "psycopg2"), "mysql": ("pymysql",), "sqlite": ("pysqlite",)}
_ASYNC = {"postgresql": ("asyncpg", "psycopg"), "mysql": ("asyncmy", "aiomysql"), "sqlite": ("aiosqlite",)}
MODULES = {"pysqlite": "sqlite3"}
"""Drivers whose module has another name."""
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "aiosqlite"}
_SHOWN_OPTIONS = {
    *("application_name", "charset", "connect_timeout", "host", "mode", "port", "service", "ssl", "sslmode"),
    *("target_session_attrs", "unix_socket", "uri"),
}
"""Options that say which database it is, or how to reach it. The values of all others are hidden."""
_URL = re.compile(
    r"(?P<drivername>[\w+]+)://"
    r"(?:(?P<username>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<ipv6>[^/?]+)\]|(?P<host>[^/:?]+))?(?::(?P<port>[^/?]*))?"
    r"(?:/(?P<database>[^?]*))?"
    r"(?:\?(?P<query>.*))?"
)


class DatabaseUrl(NamedTuple):
    """A URL in its parts, which are those of `sqlalchemy.URL`."""

    drivername: str
    username: str | None
    password: str | None
    host: str | None
    port: int | None
    database: str | None
    query: Mapping[str, str | tuple[str, ...]]

    @property
    def dialect(self) -> str:
        """The part of the driver's name that says which database it is."""
        return self.drivername.partition("+")[0]

    @property
    def driver(self) -> str:
        """The driver, if there is one."""
        return self.drivername.partition("+")[2]

    def __repr__(self) -> str:
        """Without secrets, as it may come into a traceback."""
        return shown(self)

    def for_sqlalchemy(self) -> URL:
        """The same for SQLAlchemy's engines."""
        from sqlalchemy import URL  # which takes long to load

        return URL.create(*self)


def resolve(url: str, *, asynchronous: bool = False) -> URL:
    """`with_driver` for SQLAlchemy."""
    return with_driver(url, asynchronous=asynchronous).for_sqlalchemy()


def with_driver(url: str, *, asynchronous: bool = False) -> DatabaseUrl:
    """Add a driver, sync or async: the one that the URL names if it fits, else the best one installed.

    Raises `UnsupportedDatabase` or `DriverMissing`.
    """
    parsed = parse(url)
    dialect = _DIALECTS[parsed.dialect]
    drivers = (_ASYNC if asynchronous else _SYNC)[dialect]
    for driver in (parsed.driver, *drivers) if parsed.driver in drivers else drivers:
        if find_spec(MODULES.get(driver, driver)):
            return parsed._replace(drivername=f"{dialect}+{driver}")
    kind = "an async" if asynchronous else "a"
    raise DriverMissing(
        f"{dialect} needs {kind} driver ({' or '.join(drivers)}): pip install 'postroom[{_EXTRAS[dialect]}]'"
    )


def dialect_of_url(url: str) -> str:
    """``postgresql``, ``mysql`` or ``sqlite``. Raises `UnsupportedDatabase`."""
    return _DIALECTS[parse(url).dialect]


def file_of(url: str) -> str | None:
    """The file of an SQLite database; None for servers, for memory, and for `file:` URIs."""
    path = parse(url).database
    if dialect_of_url(url) != "sqlite" or not path or path.startswith((":memory:", "file:")):
        return None
    return path


def shown(url: DatabaseUrl | str) -> str:
    """The URL for people and logs, without the password and without option values that may be secret."""
    one = url if isinstance(url, DatabaseUrl) else _parts(url)
    user = "" if one.username is None else quote(one.username, safe=" +")
    secret = "" if one.password is None else ":***"
    at = "@" if user or secret else ""
    host = f"[{one.host}]" if one.host and ":" in one.host else one.host or ""
    port = "" if one.port is None else f":{one.port}"
    database = "" if one.database is None else f"/{quote(one.database, safe=' +/')}"
    options = "&".join(
        f"{quote_plus(name)}={quote_plus(value, safe='/') if name in _SHOWN_OPTIONS else '***'}"
        for name in sorted(one.query)
        for value in _each(one.query[name])
    )
    return f"{one.drivername}://{user}{secret}{at}{host}{port}{database}{'?' if options else ''}{options}"


def parse(url: str) -> DatabaseUrl:
    """The parts of a URL. Raises `UnsupportedDatabase`."""
    parsed = _parts(url)
    if parsed.password is not None and "@" in f"{parsed.host}{parsed.database}":  # from the password
        raise UnsupportedDatabase(
            "the database URL has more than one @ (it is not shown, as that is a part of the password): "
            "write an @ in a password as %40, and a : or / as %3A or %2F"
        )
    if parsed.dialect not in _DIALECTS:
        known = ", ".join(f"{name}://" for name in _DIALECTS)
        raise UnsupportedDatabase(
            f"{parsed.drivername}:// is not a database that Postroom supports: use one of {known}"
        )
    return parsed


def _parts(url: str) -> DatabaseUrl:
    found = _URL.match(url)
    port = (found["port"] if found else None) or None
    if found is None or not (port is None or port.isdecimal()):
        raise UnsupportedDatabase(
            "the database URL cannot be read (it is not shown, as it may hold a password): write "
            "sqlite:///app.db, postgresql://user:password@host:5432/name or mysql://user:password@host:3306/name"
        )
    query: dict[str, str | tuple[str, ...]] = {}
    for name, value in parse_qsl(found["query"] or ""):
        query[name] = (*_each(query[name]), value) if name in query else value
    username, password, database = (
        None if part is None else unquote(part) for part in found.group("username", "password", "database")
    )
    return DatabaseUrl(
        found["drivername"],
        username,
        password,
        found["host"] or found["ipv6"],
        None if port is None else int(port),
        database,
        query,
    )


def _each(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
