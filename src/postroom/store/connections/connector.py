"""Open our own connections to one database: with its settings, within limits, and aware of poolers."""

from __future__ import annotations

import re
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroom.errors import DatabaseUnreachable
from postroom.store.connections import opening
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.limits import break_off
from postroom.store.connections.opening import Options, for_driver, options_of
from postroom.store.connections.pooled import UNPREPARED, ais_direct, is_direct, settings
from postroom.store.connections.urls import shown
from postroom.store.sql.db_errors import reason
from postroom.store.sql.steps import Query, arun, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.connections.limits import Limits
    from postroom.store.connections.urls import DatabaseUrl
    from postroom.store.sql.steps import Steps

_SESSION = {
    # Under REPEATABLE READ a claim would not see what others have settled.
    "postgresql": ("SET default_transaction_isolation = 'read committed'", settings(local=False)),
    "mysql": (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ),  # otherwise gap locks of claims block producers
    "sqlite": ("PRAGMA busy_timeout = 30000", "PRAGMA synchronous = FULL"),
}
_NAMELESS = {"asyncmy", "aiomysql"}
"""Drivers that leave it to the server which collation belongs to their character set."""
_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '(\w+)'")
_INSTEAD = {"asyncpg": ": for libpq's options, such as sslmode, write postgresql+psycopg://"}
"""For each driver: which other one to use for options that it does not have."""


class Connector:
    """Opens connections, sync or async as the URL's driver is, and detects whether they go through a pooler."""

    def __init__(self, url: DatabaseUrl, limits: Limits | None) -> None:
        self.url = url
        self.dialect = url.dialect
        self.limits = limits
        self.pooled = False
        """Whether they do. Known from the first connection on."""
        self._given = options_of(url)
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._noting = threading.Lock()
        self._broken_off = False

    def connect(self) -> Any:
        """A connection of a blocking driver. Raises `DatabaseUnreachable`."""
        try:
            connection = self._connected()
            if self._may_be_pooled and not self._is_direct(connection):
                opening.close(connection)
                self.pooled = True
                connection = self._connected()
            self._set_up(connection)
        except Exception as error:  # drivers raise anything, such as a TypeError for an unknown option in the URL
            raise self.unreachable(error) from error
        return connection

    async def aconnect(self) -> Any:
        """A connection of an async driver. Raises `DatabaseUnreachable`."""
        try:
            connection = await opening.aconnect(self.url.driver, self._options())
            if self._may_be_pooled and not await self._ais_direct(connection):
                await opening.aclose(connection)
                self.pooled = True
                connection = await opening.aconnect(self.url.driver, self._options())
            await self._aset_up(connection)
        except Exception as error:
            raise self.unreachable(error) from error
        return connection

    def break_off(self) -> None:
        """Close all connections, from any thread: operations that wait for the server fail, and none can start."""
        with self._noting:
            self._broken_off, connections = True, list(self._open)
        for connection in connections:
            break_off(connection)

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Raise errors of the network as `DatabaseUnreachable`, without the URL's secrets."""
        try:
            yield
        except OSError as error:
            raise self.unreachable(error) from error

    def unreachable(self, error: Exception) -> DatabaseUnreachable:
        """The error to raise instead."""
        return DatabaseUnreachable(f"the database {shown(self.url)} cannot be reached: {self._why(error)}")

    def _why(self, error: Exception) -> str:
        unknown = _UNKNOWN_OPTION.search(str(error)) if isinstance(error, TypeError) else None
        if unknown is None:
            return reason(error)
        driver = self.url.driver
        return f"the driver {driver} has no option {unknown[1]!r}{_INSTEAD.get(driver, '')}"

    def _connected(self) -> Any:
        connection = opening.connect(self.url.driver, self._options())
        with self._noting:
            if not self._broken_off:
                if self.limits and hasattr(connection, "fileno"):
                    self._open.add(connection)
                return connection
        opening.close(connection)
        raise ConnectionAbortedError("it did not answer in time")

    @property
    def _may_be_pooled(self) -> bool:
        return self.dialect == "postgresql" and not self.pooled

    def _is_direct(self, connection: Any) -> bool:
        try:
            return is_direct(connection)
        except BaseException:
            break_off(connection)
            opening.close(connection)
            raise

    async def _ais_direct(self, connection: Any) -> bool:
        try:
            return await ais_direct(connection)
        except BaseException:  # also if cancelled: nobody else has it yet
            await opening.aclose(connection)
            raise

    def _set_up(self, connection: Any) -> None:
        try:
            run(self._settings(connection), driver_kind(connection).execute)
        except BaseException:
            opening.close(connection)
            raise

    async def _aset_up(self, connection: Any) -> None:
        try:
            await arun(self._settings(connection), driver_kind(connection).execute)
        except BaseException:
            await opening.aclose(connection)
            raise

    def _options(self) -> Options:
        driver = self.url.driver
        limited = self.limits.options(driver) if self.limits else {}
        unprepared = for_driver(UNPREPARED[driver]) if self.pooled else {}
        return self._given._replace(named={**limited, **self._given.named, **unprepared})

    def _settings(self, connection: Any) -> Steps[None]:
        """Those of the session: none behind a pooler."""
        if self.pooled:
            return
        statements = [*_SESSION[self.dialect], *([self.limits.session(self.dialect)] if self.limits else ())]
        if self.url.driver in _NAMELESS:
            statements.append(f"SET NAMES {connection.character_set_name()}")
        if self.dialect == "postgresql":  # which takes them all at once
            yield Query("; ".join(statements), script=True)
            return
        for statement in statements:
            yield Query(statement)
