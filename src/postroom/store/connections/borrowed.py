"""An SQLAlchemy connection on a driver's connection that somebody else has opened, in their open transaction."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import StaticPool, create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_SCHEMES = {
    "psycopg": "postgresql+psycopg",
    "psycopg2": "postgresql+psycopg2",
    "pymysql": "mysql+pymysql",
    "MySQLdb": "mysql+mysqldb",
    "sqlite3": "sqlite+pysqlite",
}


@contextmanager
def borrowed(driver: Any, dialect: str) -> Iterator[Connection]:
    """Use a driver's connection through SQLAlchemy, which neither commits nor rolls back nor closes it.

    ``dialect`` is for drivers whose classes do not tell which they are.
    """
    found = next((name for cls in type(driver).__mro__ if (name := cls.__module__.partition(".")[0]) in _SCHEMES), None)
    scheme = _SCHEMES[found] if found else {"mysql": "mysql+mysqldb", "sqlite": "sqlite+pysqlite"}[dialect]
    # PostgreSQL: no question about a type that we do not use.
    options = {"use_native_hstore": False} if scheme.startswith("postgresql") else {}
    engine = create_engine(f"{scheme}://", creator=lambda: driver, poolclass=StaticPool, **options)
    for end in ("do_begin", "do_commit", "do_rollback", "do_close", "do_terminate"):
        setattr(engine.dialect, end, _leave)
    with engine.connect() as connection:
        yield connection


def _leave(_driver: Any) -> None:
    """It is not ours to end."""
