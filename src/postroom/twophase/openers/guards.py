"""Guards: what keeps code from ending the transaction of an SQLAlchemy connection by itself."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import event

from postroom.errors import UnusableConnection
from postroom.rules.twophase_statements import end_of_transaction
from postroom.store.connections.autocommit import below_sqlalchemy
from postroom.store.twophase.branches import Ended
from postroom.twophase.openers.refusing import refusal

if TYPE_CHECKING:
    from collections.abc import Callable


class Guard:
    """Refuses to let an SQLAlchemy connection end its transaction, or go on without it, until it is lifted.

    The connection is one of a `guarded` engine.
    """

    def __init__(self, connection: Any, driver: Any, name: str, *, sees_ours: bool) -> None:
        """`driver` is the driver's connection, on which the transaction was begun.

        `sees_ours`: our own statements go through SQLAlchemy, too.
        """
        self._name = name
        self._driver = driver
        self._sees_ours = sees_ours
        self._flushing = self._flush_failed = False
        self._listeners: list[tuple[Any, str, Any]] = []
        self.is_lifted = False
        _GUARDS[connection] = self

    def let_flushes_fail(self, session: Any) -> None:
        """Have a session's flush that fails raise its own error, rather than that it cannot roll back."""
        self._listen(session, "before_flush", self._begin_flush)
        self._listen(session, "after_flush", self._end_flush)

    def require_flushed(self) -> None:
        """Raise `UnusableConnection` if a flush has failed: a part of it may be written."""
        if self._flush_failed:
            raise UnusableConnection(
                f"participant {self._name!r} cannot commit: a flush of its session failed, and the error was caught: "
                "let it out to roll back all, or flush inside `begin_nested()` to go on without its changes"
            )

    def lift(self) -> None:
        """Refuse nothing any more."""
        for listener in self._listeners:
            event.remove(*listener)
        self._listeners.clear()
        self.is_lifted = True

    def _listen(self, target: Any, name: str, function: Any) -> None:
        event.listen(target, name, function)
        self._listeners.append((target, name, function))

    def refuse_commit(self) -> None:
        """Called for the connection's COMMIT."""
        raise refusal(self._name, "commit()")

    def refuse_rollback(self) -> None:
        """Called for its ROLLBACK."""
        error = sys.exc_info()[1]
        if self._flushing and error is not None:
            self._flushing = False
            self._flush_failed = True
            raise error
        raise refusal(self._name, "rollback() and close()") from error

    def require_open(self, connection: Any) -> None:
        """Let no statement commit by itself, after a COMMIT that was executed as SQL.

        Nor on another connection, with which SQLAlchemy replaces one that the server has closed.
        """
        if connection.connection.driver_connection is not self._driver or below_sqlalchemy(connection):
            raise Ended

    def require_no_end(self, statement: str) -> None:
        """Let no COMMIT or ROLLBACK be executed as SQL."""
        if not self._sees_ours and (command := end_of_transaction(statement)):
            raise refusal(self._name, command)

    def _begin_flush(self, *_: object) -> None:
        self._flushing = True

    def _end_flush(self, *_: object) -> None:
        self._flushing = False


_GUARDS: WeakKeyDictionary[Any, Guard] = WeakKeyDictionary()
"""By connection."""


def guarded(engine: Any) -> Any:
    """The engine, with the same pool, and connections for `Guard`. The application's own are left alone.

    To listen to an engine once is several times as fast as to listen to each connection.
    """
    own = engine.execution_options()
    for name, function in _LISTENERS.items():
        event.listen(getattr(own, "sync_engine", own), name, function)
    return own


def _on_commit(connection: Any) -> None:
    if guard := _guard_of(connection):
        guard.refuse_commit()


def _on_rollback(connection: Any) -> None:
    if guard := _guard_of(connection):
        guard.refuse_rollback()


def _on_statement(connection: Any, _cursor: object, statement: str, *_: object) -> None:
    if guard := _guard_of(connection):
        guard.require_open(connection)
        guard.require_no_end(statement)


def _guard_of(connection: Any) -> Guard | None:
    guard = _GUARDS.get(connection)
    return None if guard is None or guard.is_lifted else guard


_LISTENERS: dict[str, Callable[..., None]] = {
    "commit": _on_commit,
    "rollback": _on_rollback,
    "before_cursor_execute": _on_statement,
}
