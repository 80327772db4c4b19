"""Savepoints: run a handler's transaction inside that of a test, which decides how it ends."""

from __future__ import annotations

import sys
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any

from postroom.store.connections.async_kinds import AsyncKind
from postroom.store.connections.kinds import async_kind, driver_kind, sync_kind
from postroom.store.connections.sync_kinds import Django
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

_METHOD = "InMemoryConsumer"
_BEGIN = Query("BEGIN", {})
_SAVE = Query("SAVEPOINT postroom_test", {})
_UNDO = Query("ROLLBACK TO SAVEPOINT postroom_test", {})
_RELEASE = Query("RELEASE SAVEPOINT postroom_test", {})


def savepoints(connection: Any) -> Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]:
    """A function that opens savepoints on the connection; leaving one with an error undoes what was done in it.

    Raises `UnsupportedConnection`.
    """
    is_async = isinstance(driver_kind(connection), AsyncKind)
    return lambda: _asavepoint(connection) if is_async else _savepoint(connection)


@contextmanager
def _savepoint(connection: Any) -> Iterator[Any]:
    kind = sync_kind(connection, _METHOD)
    if kind.dialect == "sqlite":
        with suppress(Exception):  # a transaction is open already
            kind.execute(_BEGIN)  # otherwise the savepoint would be the transaction, and its release a commit
    own = _own(connection, kind)
    if own is not None:
        with own:
            yield connection
        return
    kind.execute(_SAVE)
    try:
        yield connection
    except BaseException:
        with suppress(Exception):  # if the handler ended the transaction, the original error says so
            kind.execute(_UNDO)
            kind.execute(_RELEASE)
        raise
    kind.execute(_RELEASE)


def _own(connection: Any, kind: Any) -> AbstractContextManager[Any] | None:
    """The library's own savepoint, if it keeps track of them."""
    if isinstance(kind, Django):
        found: AbstractContextManager[Any] = sys.modules["django.db"].transaction.atomic(using=connection.alias)
        return found
    nested: Callable[[], AbstractContextManager[Any]] | None = getattr(connection, "begin_nested", None)
    return nested() if nested else None


@asynccontextmanager
async def _asavepoint(connection: Any) -> AsyncIterator[Any]:
    kind = await async_kind(connection, f"a{_METHOD}")
    if kind.dialect == "sqlite":
        with suppress(Exception):  # as in _savepoint
            await kind.execute(_BEGIN)
    if hasattr(connection, "begin_nested"):
        async with connection.begin_nested():
            yield connection
        return
    await kind.execute(_SAVE)
    try:
        yield connection
    except BaseException:
        with suppress(Exception):  # as in _savepoint
            await kind.execute(_UNDO)
            await kind.execute(_RELEASE)
        raise
    await kind.execute(_RELEASE)
