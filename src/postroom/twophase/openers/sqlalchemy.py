"""Participants given as engines and sessionmakers of SQLAlchemy, sync and async.

Statements of ours go straight to the driver. What the code inside does goes through SQLAlchemy, on the same connection
in autocommit: SQLAlchemy believes in a transaction, and its attempts to end that one are refused.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting, UnsupportedConnection
from postroom.store.connections.async_kinds import SQLAlchemyAsyncConnection
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.limits import break_off
from postroom.store.connections.sync_kinds import SQLAlchemyConnection, of_sqlalchemy
from postroom.twophase.lines import Opener
from postroom.twophase.openers.guards import Guard, guarded
from postroom.twophase.openers.refusing import only_async, only_sync, require_open

if TYPE_CHECKING:
    from postroom.store.sql.steps import Query, Result
    from postroom.twophase.lines import Line

_AUTOCOMMIT = "AUTOCOMMIT"
_ALONE = {"twophase": False, "join_transaction_mode": "control_fully"}
"""Options of a session that leaves nothing of its end to its own connections."""


class EngineLine:
    """A connection of an engine."""

    flushes = False

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self.given = connection
        self.dialect, _ = of_sqlalchemy(connection)
        self.isolation = isolation_of(connection)
        connection.execution_options(isolation_level=_AUTOCOMMIT)
        self._driver = connection.connection.driver_connection
        known = _kind_of(self._driver)
        self._kind = known or SQLAlchemyConnection(connection)
        connection.begin()  # so that code which begins one hears that there is one
        self._guard = Guard(connection, self._driver, name, sees_ours=known is None)
        self._broken_off = False

    def execute(self, query: Query) -> Result:
        require_open(broken_off=self._broken_off, closed=self._connection.closed)
        result: Result = self._kind.execute(query)
        return result

    def flush(self) -> None:
        """Do nothing: a connection has written all."""

    def break_off(self) -> None:
        self._broken_off = True
        break_off(self._driver)

    def release(self) -> None:
        self._guard.lift()
        if self._broken_off and not self._connection.closed:
            self._connection.invalidate()
        self._close()

    def _close(self) -> None:
        self._connection.close()


class SessionLine(EngineLine):
    """A session on a connection of its engine."""

    flushes = True

    def __init__(self, connection: Any, make: Any, name: str) -> None:
        super().__init__(connection, name)
        self.given = make(bind=connection, binds=None, **_ALONE)
        self._guard.let_flushes_fail(self.given)

    def flush(self) -> None:
        self._guard.require_flushed()
        self.given.flush()

    def _close(self) -> None:
        with suppress(Exception):  # what is left of it must not keep the connection from its pool
            self.given.close()
        super()._close()


class AsyncEngineLine:
    """A connection of an async engine."""

    flushes = False

    def __init__(self, connection: Any, driver: Any, name: str) -> None:
        self._connection = connection
        self.given = connection
        self.dialect, _ = of_sqlalchemy(connection)
        self.isolation: str | None = None
        self._driver = driver
        known = _kind_of(driver)
        self._kind = known or SQLAlchemyAsyncConnection(connection)
        self._guard = Guard(connection.sync_connection, driver, name, sees_ours=known is None)
        self._broken_off = False

    @classmethod
    async def on(cls, connection: Any, *options: Any) -> AsyncEngineLine:
        """Make a line of a connection."""
        isolation = isolation_of(connection.sync_connection)
        await connection.execution_options(isolation_level=_AUTOCOMMIT)
        driver = (await connection.get_raw_connection()).driver_connection
        await connection.begin()
        line = cls(connection, driver, *options)
        line.isolation = isolation
        return line

    async def execute(self, query: Query) -> Result:
        require_open(broken_off=self._broken_off, closed=self._connection.closed)
        result: Result = await self._kind.execute(query)
        return result

    async def flush(self) -> None:
        """Do nothing: a connection has written all."""

    def break_off(self) -> None:
        self._broken_off = True
        break_off(self._driver)

    async def release(self) -> None:
        self._guard.lift()
        if self._broken_off and not self._connection.closed:
            await self._connection.invalidate()
        await self._close()

    async def _close(self) -> None:
        await self._connection.close()


class AsyncSessionLine(AsyncEngineLine):
    """A session on a connection of its async engine."""

    flushes = True

    def __init__(self, connection: Any, driver: Any, make: Any, name: str) -> None:
        super().__init__(connection, driver, name)
        self.given = make(bind=connection, binds=None, **_ALONE)
        self._guard.let_flushes_fail(self.given.sync_session)

    async def flush(self) -> None:
        self._guard.require_flushed()
        await self.given.flush()

    async def _close(self) -> None:
        with suppress(Exception):  # what is left of it must not keep the connection from its pool
            await self.given.close()
        await super()._close()


class Engines(Opener):
    """Lines of an `Engine`."""

    def __init__(self, engine: Any, name: str) -> None:
        super().__init__()
        self._given = engine
        self.engine = guarded(engine)
        self._name = name

    def open(self) -> Line:
        connection = self.engine.connect()
        try:
            return self._line(connection)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise

    def _line(self, connection: Any) -> Line:
        return EngineLine(connection, self._name)

    async def aopen(self) -> Line:
        raise only_sync(self._name, self._given)


class Sessions(Engines):
    """Lines of a `sessionmaker`."""

    def __init__(self, make: Any, name: str) -> None:
        super().__init__(engine_of(make, name), name)
        self._make = make

    def _line(self, connection: Any) -> Line:
        return SessionLine(connection, self._make, self._name)


class AsyncEngines(Opener):
    """Lines of an `AsyncEngine`."""

    def __init__(self, engine: Any, name: str) -> None:
        super().__init__()
        self._given = engine
        self.engine = guarded(engine)
        self._name = name

    def open(self) -> Line:
        raise only_async(self._name, self._given)

    async def aopen(self) -> Line:
        connection = await self.engine.connect()
        try:
            return await self._line(connection)
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise

    async def _line(self, connection: Any) -> Line:
        return await AsyncEngineLine.on(connection, self._name)


class AsyncSessions(AsyncEngines):
    """Lines of an `async_sessionmaker`."""

    def __init__(self, make: Any, name: str) -> None:
        super().__init__(engine_of(make, name), name)
        self._make = make

    async def _line(self, connection: Any) -> Line:
        return await AsyncSessionLine.on(connection, self._make, self._name)


def engine_of(make: Any, name: str) -> Any:
    """The engine of a sessionmaker. Raises `InvalidSetting` if it has none, or is bound to a connection."""
    bind = make.kw.get("bind")
    if not hasattr(bind, "connect"):
        raise InvalidSetting(
            f"participant {name!r} is given as a sessionmaker without an engine: give one with bind=engine"
        )
    return bind


def isolation_of(connection: Any) -> str | None:
    """The isolation level that an application has chosen for an engine; None if it has chosen none."""
    options: dict[str, Any] = connection.get_execution_options()
    chosen = options.get("isolation_level") or connection.dialect._on_connect_isolation_level  # noqa: SLF001 - no other way
    return None if chosen in {None, _AUTOCOMMIT} or connection.dialect.name == "sqlite" else str(chosen)


def _kind_of(driver: Any) -> Any:
    try:
        return driver_kind(driver)
    except UnsupportedConnection:  # one that only SQLAlchemy knows, such as mysqlclient
        return None
