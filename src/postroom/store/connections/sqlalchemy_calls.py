"""Call functions that want an SQLAlchemy connection, which make and change tables, with connections of our own."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import greenlet_spawn

from postroom.errors import DriverMissing
from postroom.store.connections.opening import to_the_end
from postroom.store.connections.pooled import UNPREPARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from postroom.store.connections.connector import Connector

T = TypeVar("T")

_ASYNC_NAMES = {"postgresql+psycopg": "postgresql+psycopg_async"}
"""SQLAlchemy's names for drivers that are both sync and async."""


def call(connector: Connector, function: Callable[[Connection], T]) -> T:
    """Call the function with a connection that does not autocommit."""
    engine = _engine(connector, connector.url.drivername, creator=connector.connect)
    with _reachable(connector), engine.connect() as connection:
        return function(connection)


async def acall(connector: Connector, function: Callable[[Connection], T]) -> T:
    """`call` with an async driver."""
    if find_spec("greenlet") is None:  # which sync users may not have
        raise DriverMissing("async connections need greenlet: pip install 'postroom[asyncio]'")
    name = connector.url.drivername
    options = {"async_creator_fn": lambda *_, **__: connector.aconnect()}
    if connector.url.driver == "asyncpg":  # one for all: it is not known yet whether there is a pooler
        options |= UNPREPARED["asyncpg"]
    engine = _engine(connector, _ASYNC_NAMES.get(name, name), connect_args=options)
    with _reachable(connector):
        connection = await greenlet_spawn(engine.connect)
        try:
            return await greenlet_spawn(function, connection)
        finally:
            await to_the_end(greenlet_spawn(connection.close))


def _engine(connector: Connector, drivername: str, **options: Any) -> Engine:
    level = "SERIALIZABLE" if connector.dialect == "sqlite" else "READ COMMITTED"
    url = connector.url._replace(drivername=drivername).for_sqlalchemy()
    return create_engine(url, poolclass=NullPool, isolation_level=level, **options)


@contextmanager
def _reachable(connector: Connector) -> Iterator[None]:
    """Raise connection errors as `DatabaseUnreachable`, without the URL's secrets."""
    with connector.reachable():
        try:
            yield
        except DBAPIError as error:
            if error.statement is not None and not error.connection_invalidated:
                raise
            raise connector.unreachable(error) from error
