"""Participants given as a driver's own connections: from a function that makes one, or from a pool."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from postroom.errors import InvalidSetting
from postroom.store.connections.async_kinds import Aiosqlite, AsyncKind, AsyncMySQL, PsycopgAsync
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.limits import break_off
from postroom.store.connections.sync_kinds import Psycopg, PyMySQL, Sqlite3, SyncKind
from postroom.twophase.lines import Opener
from postroom.twophase.openers.refusing import only_async, only_sync, refusing, require_open
from postroom.twophase.rounds import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.steps import Query, Result
    from postroom.twophase.lines import Line

_REFUSED = {
    "commit": "commit()",
    "rollback": "rollback()",
    "connect": "ping(reconnect=True)",  # of PyMySQL and asyncmy: a new session knows nothing of the transaction
    "_connect": "ping(reconnect=True)",  # of aiomysql
}
"""What a driver's connection must not do, and in which words."""


class Source(Protocol):
    """Where a driver's connections come from, and go to. Awaitable for an async driver."""

    def take(self) -> Any:
        """A connection."""

    async def atake(self) -> Any:
        """A connection for async code."""

    def give_back(self, connection: Any) -> Any:
        """Take back a connection that is as it was."""

    def discard(self, connection: Any) -> Any:
        """Take back a connection that is broken."""


class _DriverLine:
    """What sync and async lines share."""

    flushes = False

    def __init__(self, connection: Any, source: Source, name: str) -> None:
        self.given = connection
        self._source = source
        self._kind = driver_kind(connection)
        self.dialect: str = self._kind.dialect
        level: Any = getattr(connection, "isolation_level", None)  # psycopg's is an enum
        self.isolation: str | None = str(level.name).replace("_", " ") if hasattr(level, "name") else None
        self._broken_off = False
        self._name = name

    def break_off(self) -> None:
        self._broken_off = True
        break_off(self.given)

    def _refuse_ends(self) -> None:
        """Refuse what ends the transaction, where the driver's class lets us. `confirm` and `prepare` find others."""
        for method, what in _REFUSED.items():
            if hasattr(self.given, method):
                with suppress(AttributeError, TypeError):  # a class written in C
                    setattr(self.given, method, refusing(self._name, what))

    def _allow_ends(self) -> None:
        for method in _REFUSED:
            with suppress(AttributeError, TypeError):
                delattr(self.given, method)


class DriverLine(_DriverLine):
    """A sync driver's connection."""

    def __init__(self, connection: Any, source: Source, name: str) -> None:
        super().__init__(connection, source, name)
        if isinstance(self._kind, Sqlite3):
            _require_any_thread(connection, name)
        self._before = set_autocommit(self._kind, True)  # noqa: FBT003 - as drivers take it
        self._refuse_ends()

    def execute(self, query: Query) -> Result:
        require_open(broken_off=self._broken_off, closed=False)
        result: Result = self._kind.execute(query)
        return result

    def flush(self) -> None:
        """Do nothing: there is no ORM."""

    def release(self) -> None:
        self._allow_ends()
        if not self._broken_off:
            try:
                set_autocommit(self._kind, self._before)
            except Exception:  # noqa: BLE001 - it is broken, whatever was done on it is done
                self._broken_off = True
        (self._source.discard if self._broken_off else self._source.give_back)(self.given)


class AsyncDriverLine(_DriverLine):
    """An async driver's connection."""

    _before: Any = None

    async def start(self) -> AsyncDriverLine:
        """Make it ready."""
        self._before = await aset_autocommit(self._kind, True)  # noqa: FBT003 - as drivers take it
        self._refuse_ends()
        return self

    async def execute(self, query: Query) -> Result:
        require_open(broken_off=self._broken_off, closed=False)
        result: Result = await self._kind.execute(query)
        return result

    async def flush(self) -> None:
        """Do nothing: there is no ORM."""

    async def release(self) -> None:
        self._allow_ends()
        if not self._broken_off:
            try:
                await aset_autocommit(self._kind, self._before)
            except Exception:  # noqa: BLE001 - it is broken, whatever was done on it is done
                self._broken_off = True
        await _awaited((self._source.discard if self._broken_off else self._source.give_back)(self.given))


class FromDriver(Opener):
    """Lines of a source of connections."""

    def __init__(self, source: Source, given: object, name: str, *, only_sync: bool = False) -> None:
        super().__init__()
        self._only_sync = only_sync
        self._source = source
        self._given = given
        self._name = name

    def open(self) -> Line:
        connection = self._source.take()
        if inspect.isawaitable(connection):
            if isinstance(connection, Coroutine):  # which nobody will await
                connection.close()
            raise only_async(self._name, self._given)
        try:
            return DriverLine(self._known(connection, SyncKind), self._source, self._name)
        except BaseException:
            with suppress(Exception):  # it may be no connection at all
                self._source.discard(connection)
            raise

    async def aopen(self) -> Line:
        if self._only_sync:
            raise only_sync(self._name, self._given)
        connection = await self._source.atake()
        try:
            return await AsyncDriverLine(self._known(connection, AsyncKind), self._source, self._name).start()
        except BaseException:
            with suppress(Exception):
                await _awaited(self._source.discard(connection))
            raise

    def _known(self, connection: Any, wanted: type) -> Any:
        """The connection, if it is of a driver that is sync or async as wanted."""
        if isinstance(driver_kind(connection), wanted):
            return connection
        self._only_sync = wanted is AsyncKind  # what a function returns is known when it was called
        raise (only_sync if wanted is AsyncKind else only_async)(self._name, connection)


class FunctionSource:
    """Calls a function for each connection, and closes it after use."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.take = function

    async def atake(self) -> Any:
        if inspect.iscoroutinefunction(self.take):
            return await self.take()
        try:  # only what it returns tells whether it is sync, and one that is must not hold up the loop
            taken = await in_thread(self.take)
        except RuntimeError:  # it is async, and asks for the running loop
            taken = self.take()
        return await _awaited(taken)

    def give_back(self, connection: Any) -> Any:
        # The graceful one of asyncmy and aiomysql.
        return getattr(connection, "ensure_closed", connection.close)()

    def discard(self, connection: Any) -> Any:
        break_off(connection)
        return self.give_back(connection)


class PsycopgPool:
    """Both pools of psycopg_pool."""

    def __init__(self, pool: Any) -> None:
        self.take = self.atake = pool.getconn
        self.give_back = pool.putconn

    def discard(self, connection: Any) -> Any:
        break_off(connection)
        closing = connection.close()
        return self.give_back(connection) if closing is None else self._discard(connection, closing)

    async def _discard(self, connection: Any, closing: Any) -> None:
        await closing
        await self.give_back(connection)


class AsyncPool:
    """The pools of asyncpg, asyncmy and aiomysql."""

    def __init__(self, pool: Any) -> None:
        self.take = self.atake = pool.acquire
        self.give_back = pool.release

    async def discard(self, connection: Any) -> None:
        break_off(connection)
        with suppress(Exception):
            # asyncmy's pool would keep one that it does not know to be closed.
            await _awaited(getattr(connection, "ensure_closed", connection.close)())
        await _awaited(self.give_back(connection))


def from_function(function: Callable[[], Any], name: str) -> Opener:
    """Lines of a function that returns a driver's connection, sync or async."""
    return FromDriver(FunctionSource(function), function, name)


def from_psycopg_pool(pool: Any, name: str) -> Opener:
    """Lines of a pool of psycopg_pool, sync or async."""
    return FromDriver(PsycopgPool(pool), pool, name, only_sync=not inspect.iscoroutinefunction(pool.getconn))


def from_async_pool(pool: Any, name: str) -> Opener:
    """Lines of a pool of asyncpg, asyncmy or aiomysql."""
    return FromDriver(AsyncPool(pool), pool, name)


def set_autocommit(kind: Any, value: Any) -> Any:
    """Set a sync connection's autocommit, or what it was before; returns what it was."""
    connection = kind.connection
    before: Any = None
    match kind:
        case Sqlite3():
            before = connection.isolation_level
            connection.isolation_level = None if value is True else value
        case PyMySQL():
            before = connection.get_autocommit()
            connection.autocommit(value)
        case Psycopg():  # psycopg2's too
            before = connection.autocommit
            if before != value:
                connection.autocommit = value
        case _:
            pass
    return before


async def aset_autocommit(kind: Any, value: Any) -> Any:
    """`set_autocommit` for an async connection."""
    connection = kind.connection
    before: Any = None
    match kind:
        case PsycopgAsync():
            before = connection.autocommit
            await connection.set_autocommit(value)
        case AsyncMySQL():
            before = connection.get_autocommit()
            await connection.autocommit(value)
        case Aiosqlite():
            before = connection.isolation_level
            level = None if value is True else value
            # aiosqlite's own setter fails outside of the connection's thread.
            await connection._execute(setattr, connection._conn, "isolation_level", level)  # noqa: SLF001 - as said
        case _:  # asyncpg always is
            pass
    return before


def _require_any_thread(connection: Any, name: str) -> None:
    """Raise `InvalidSetting` if a connection of sqlite3 can only be used in the thread that has made it."""

    def use() -> None:
        try:
            connection.cursor().close()
        except Exception as error:  # noqa: BLE001 - raised below, in the thread of the caller
            errors.append(error)

    errors: list[Exception] = []
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    if errors:
        raise InvalidSetting(
            f"participant {name!r} has a connection of sqlite3 for one thread alone: connect with "
            "check_same_thread=False, or give the URL of the database"
        ) from errors[0]


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
