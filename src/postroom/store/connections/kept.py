"""Keep connections open between operations, for the next one."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.store.connections import opening
from postroom.store.connections.kinds import driver_kind
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from postroom.store.connections.connector import Connector

MOST = 5
"""Connections that are kept while nobody uses them. There is no limit to those in use."""
_PING = Query("SELECT 1", script=True)  # which prepares nothing: there may be a pooler


class _Kept:
    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._idle: list[Any] = []  # its methods are atomic: threads need no lock
        self._most = MOST

    def _keep(self, connection: Any) -> bool:
        if len(self._idle) >= self._most:
            return False
        self._idle.append(connection)
        return True

    def _any(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return None


class KeptConnections(_Kept):
    """Connections of a blocking driver. Safe to use from any thread."""

    def take(self) -> Any:
        """A connection that answers: one that was kept, or a new one. Raises `DatabaseUnreachable`."""
        while (connection := self._any()) is not None:
            try:
                driver_kind(connection).execute(_PING)
            except BaseException as error:
                opening.close(connection)
                if not isinstance(error, Exception):
                    raise
            else:
                return connection
        return self._connector.connect()

    def give_back(self, connection: Any) -> None:
        """Keep a connection; close it if there are enough, or if a transaction was left open on it."""
        with suppress(Exception):  # it may be lost
            if driver_kind(connection).autocommits() and self._keep(connection):
                if not self._most:  # another thread has closed the others just now
                    self.close()
                return
        opening.close(connection)

    def close(self) -> None:
        """Close what is kept, and keep no more."""
        self._most = 0
        while (connection := self._any()) is not None:
            opening.close(connection)


class AsyncKeptConnections(_Kept):
    """Connections of an async driver, for one event loop."""

    async def take(self) -> Any:
        """As `KeptConnections`."""
        while (connection := self._any()) is not None:
            try:
                await driver_kind(connection).execute(_PING)
            except BaseException as error:
                await opening.aclose(connection)
                if not isinstance(error, Exception):
                    raise
            else:
                return connection
        return await self._connector.aconnect()

    async def give_back(self, connection: Any) -> None:
        """As `KeptConnections`."""
        with suppress(Exception):
            if await driver_kind(connection).autocommits() and self._keep(connection):
                return
        await opening.aclose(connection)

    async def close(self) -> None:
        """As `KeptConnections`."""
        self._most = 0
        while (connection := self._any()) is not None:
            await opening.aclose(connection)
