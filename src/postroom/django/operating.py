"""`Admin` on Django's own connection: it sees what a test has not committed, and opens no connection of its own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, transaction

from postroom.admin import Admin
from postroom.django import configuration
from postroom.settings import Settings
from postroom.store.connections.borrowed import borrowed
from postroom.store.connections.sync_kinds import Django
from postroom.store.sql.db_errors import explained
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.steps import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from postroom.store.sql.steps import Query, Result, Steps

T = TypeVar("T")


class DjangoAdmin(Admin):
    """An `Admin` on this thread's connection to the database with the tables."""

    def __init__(self) -> None:
        in_force = Settings.load()
        self._use(DjangoStore(), in_force)
        self._checked = True  # by every page would be too often: a table that is missing is told of all the same


class DjangoStore:
    """A store on Django's connection. Inside an ``atomic`` block, transactions become savepoints."""

    def __init__(self) -> None:
        self.names = configuration.names()
        self._begin = DIALECTS[self.names.dialect].begin

    def run(self, steps: Steps[T]) -> T:
        """Run one operation to its end."""
        connection = connections[configuration.alias()]
        execute = Django(connection).execute
        if connection.in_atomic_block:
            return run(explained(steps), _Savepoints(connection.alias, self._begin, execute))
        try:
            return run(explained(steps), execute)
        except BaseException:
            with suppress(Exception):  # it is gone already
                connection.close()  # a transaction may have been left open on it
            raise

    def call(self, function: Callable[[Connection], T]) -> T:
        """Call a function with an SQLAlchemy connection, in a transaction."""
        with transaction.atomic(using=configuration.alias()):
            driver = connections[configuration.alias()].connection
            with borrowed(driver, self.names.dialect) as connection:
                return function(connection)

    def break_off(self) -> None:
        """Nothing: the connection is Django's."""

    def close(self) -> None:
        """Nothing: the connection is Django's."""


class _Savepoints:
    """Executes statements, and has savepoints of Django's for transactions."""

    def __init__(self, alias: str, begin: str, execute: Callable[[Query], Result]) -> None:
        self._alias = alias
        self._begin = begin
        self._execute = execute
        self._blocks: list[Any] = []

    def __call__(self, query: Query) -> Result:
        from postroom.store.sql.steps import Result

        match query.text:
            case self._begin:
                self._blocks.append(transaction.atomic(using=self._alias))
                self._blocks[-1].__enter__()
            case "COMMIT":
                self._blocks.pop().__exit__(None, None, None)
            case "ROLLBACK":
                undone = RuntimeError("rolled back")
                self._blocks.pop().__exit__(RuntimeError, undone, None)
            case _:
                return self._execute(query)
        return Result(())
