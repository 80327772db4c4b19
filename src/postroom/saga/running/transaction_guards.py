"""Guards: find out whether a function has ended the transaction that it was given.

Its effects would then be committed without the step's log, or gone while the log says that they are there.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from postroom.saga.running.step_failures import StepMisused
from postroom.saga.running.transaction_watch import TransactionWatch, watch_of
from postroom.store.connections.async_kinds import Asyncpg, SQLAlchemyAsyncConnection, SQLAlchemyAsyncSession
from postroom.store.connections.sync_kinds import SQLAlchemyConnection, SQLAlchemySession
from postroom.store.sql.db_errors import is_aborted, is_lost_connection, is_undone
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.connections.async_kinds import AsyncKind
    from postroom.store.connections.sync_kinds import SyncKind

ENDED = (
    "the function has committed or rolled back its transaction: leave its end to the saga, which commits the effects "
    "together with the step's log"
)
ABORTED = (
    "the function went on after a statement had failed, and PostgreSQL undoes such a transaction: let the error out, "
    "or have a savepoint around the statement"
)
BEGIN, END = "SAVEPOINT postroom_step", "RELEASE SAVEPOINT postroom_step"


class SyncGuard:
    """Watches a sync connection's transaction: a savepoint tells, which ends with it.

    PostgreSQL under SQLAlchemy is watched statement by statement instead, which costs no round trip.
    """

    def __init__(self, connection: Any, kind: SyncKind) -> None:
        self._connection = connection
        self._kind = kind
        self._transaction: Any = None
        self._watch: TransactionWatch | None = None
        if isinstance(kind, SQLAlchemyConnection):
            # One that begins by itself has not begun yet, where nothing was executed before.
            self._transaction = kind.connection.get_transaction() or kind.connection.begin()
            self._watch = watch_of(kind.connection)
        if self._watch is None:
            kind.execute(Query(BEGIN))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the function."""
        with ending_explained(), _watched(self._watch, self._kind.connection):
            yield

    def check(self) -> None:
        """Write what an ORM has not written yet. Raises `StepMisused` if the transaction is not the same any more."""
        transaction = None
        try:
            _require_open(self._watch)
            if isinstance(self._kind, SQLAlchemySession):
                self._connection.flush()  # its writes could wait for locks while others wait for ours
                transaction = self._connection.connection().get_transaction()
            elif isinstance(self._kind, SQLAlchemyConnection):
                transaction = self._kind.connection.get_transaction()
            _require(transaction is self._transaction)
            if self._watch is None:
                self._kind.execute(Query(END))
        except Exception as error:
            raise explained(error) from error


class AsyncGuard:
    """`SyncGuard` for an async connection."""

    def __init__(self, connection: Any, kind: AsyncKind) -> None:
        self._connection = connection
        self._kind = kind
        self._transaction: Any = None
        self._watch: TransactionWatch | None = None

    async def begin(self) -> None:
        """Look at the transaction before the function gets it."""
        if isinstance(self._kind, SQLAlchemyAsyncConnection):
            if not self._kind.connection.in_transaction():
                await self._kind.connection.begin()
            self._transaction = self._kind.connection.sync_connection.get_transaction()
            self._watch = watch_of(self._kind.connection.sync_connection)
        elif isinstance(self._kind, Asyncpg):
            self._watch = TransactionWatch(self._kind.connection.is_in_transaction)
        if self._watch is None:
            await self._kind.execute(Query(BEGIN))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the function."""
        with ending_explained():
            if self._watch is not None and isinstance(self._kind, Asyncpg):
                with self._watch.of_asyncpg(self._kind.connection):
                    yield
            else:
                with _watched(self._watch, getattr(self._kind.connection, "sync_connection", None)):
                    yield

    async def check(self) -> None:
        """Write what an ORM has not written yet. Raises `StepMisused` if the transaction is not the same any more."""
        transaction = None
        try:
            if isinstance(self._kind, Asyncpg):
                await asyncio.sleep(0)  # the last statement may not have been looked at
            _require_open(self._watch)
            if isinstance(self._kind, SQLAlchemyAsyncSession):
                await self._connection.flush()
                transaction = (await self._connection.connection()).sync_connection.get_transaction()
            elif isinstance(self._kind, SQLAlchemyAsyncConnection):
                transaction = self._kind.connection.sync_connection.get_transaction()
            _require(transaction is self._transaction)
            if self._watch is None:
                await self._kind.execute(Query(END))
        except Exception as error:
            raise explained(error) from error


def _watched(watch: TransactionWatch | None, connection: Any) -> AbstractContextManager[None]:
    return nullcontext() if watch is None else watch.of_sqlalchemy(connection, lambda: _require(False))  # noqa: FBT003


def explained(error: Exception) -> Exception:
    """What the database's answer says about what the function did; the error itself if it says nothing."""
    if isinstance(error, StepMisused) or is_lost_connection(error) or is_undone(error):
        return error
    if is_aborted(error):
        return StepMisused(ABORTED)
    said = str(error).lower()
    if "savepoint" in said or "closed transaction" in said:
        return StepMisused(ENDED)
    return error


@contextmanager
def ending_explained() -> Iterator[None]:
    """Tell a function that went on after it had ended its transaction from one that failed: a retry would repeat it."""
    try:
        yield
    except Exception as error:
        if "closed transaction" in str(error).lower():
            raise StepMisused(ENDED) from error
        raise


def _require_open(watch: TransactionWatch | None) -> None:
    """Look once more: what came last may have come through the driver's own cursor."""
    if watch is not None:
        watch.look()
        _require(not watch.has_ended)


def _require(is_same: bool) -> None:  # noqa: FBT001 - the only thing it is about
    if not is_same:
        raise StepMisused(ENDED)
