"""Participants given as Django's connections: ``connections["bank"]``, sync.

The connection looks like one in ``atomic``: code inside gets savepoints for its own ``atomic`` blocks, and Django
refuses its attempts to commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from postroom.errors import UnusableConnection
from postroom.rules.twophase_statements import end_of_transaction
from postroom.store.connections.limits import break_off
from postroom.store.connections.sync_kinds import Django
from postroom.twophase.lines import Opener
from postroom.twophase.openers.refusing import only_sync, refusal, require_open

if TYPE_CHECKING:
    from postroom.store.sql.steps import Query, Result
    from postroom.twophase.lines import Line

_COMMITS = ("COMMIT", "XA COMMIT")


class DjangoLine:
    """The connection of this thread for an alias."""

    flushes = True
    isolation: str | None = None

    def __init__(self, connection: Any, name: str) -> None:
        from django.db.transaction import atomic

        self.given = connection
        self._name = name
        self._kind = Django(connection)
        self.dialect = self._kind.dialect
        self._committed = self._broken_off = False
        connection.ensure_connection()
        self._driver = connection.connection
        connection.commit_on_exit = True
        connection.needs_rollback = False
        connection.autocommit = False  # only Django believes so, and makes savepoints; the driver does as before
        connection.in_atomic_block = True
        connection.atomic_blocks.append(atomic(using=connection.alias))  # so that durable=True is refused inside
        connection.execute_wrappers.append(self._require_no_end)

    def execute(self, query: Query) -> Result:
        require_open(broken_off=self._broken_off, closed=self.given.connection is not self._driver)
        result = self._kind.execute(query)
        self._committed = self._committed or query.text.startswith(_COMMITS)
        return result

    def _require_no_end(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        """Let no COMMIT or ROLLBACK be executed as SQL. Our own go past Django."""
        if command := end_of_transaction(str(sql)):
            raise refusal(self._name, command)
        return execute(sql, params, many, context)

    def flush(self) -> None:
        """Refuse what Django has marked to be rolled back."""
        if self.given.needs_rollback:
            raise UnusableConnection(
                f"participant {self._name!r} cannot commit: an error was caught inside `atomic(savepoint=False)`, or "
                "set_rollback(True) was called; let the error out to roll back all"
            )

    def break_off(self) -> None:
        self._broken_off = True
        break_off(self._driver)

    def release(self) -> None:
        connection = self.given
        hooks = connection.run_on_commit if self._committed else []
        connection.execute_wrappers.remove(self._require_no_end)
        connection.atomic_blocks.clear()
        connection.savepoint_ids = []
        connection.in_atomic_block = connection.needs_rollback = connection.closed_in_transaction = False
        connection.autocommit = True
        connection.run_on_commit = []
        if self._broken_off:
            connection.close()
        for _, hook, _ in hooks:
            _call(hook)


class DjangoConnection(Opener):
    """Lines of a Django connection: each thread has its own for an alias."""

    thread_bound = True

    def __init__(self, connection: Any, name: str) -> None:
        super().__init__()
        self._alias: str = connection.alias
        self._given = connection
        self._name = name

    def open(self) -> Line:
        from django.db import connections

        connection = connections[self._alias]
        if connection.in_atomic_block or not connection.get_autocommit():
            raise UnusableConnection(
                f"participant {self._name!r}: Django's connection {self._alias!r} is in a transaction already: begin "
                "outside of atomic(), and without ATOMIC_REQUESTS or AUTOCOMMIT = False for it"
            )
        return DjangoLine(connection, self._name)

    async def aopen(self) -> Line:
        raise only_sync(self._name, self._given)


def _call(hook: Any) -> None:
    """Call a function of ``transaction.on_commit``. What it raises changes nothing any more."""
    try:
        hook()
    except Exception as error:  # noqa: BLE001 - the transaction has committed
        name = type(error).__name__  # no more, for the rest may hold a payload
        logging.getLogger("postroom").error("a function of transaction.on_commit has failed: %s", name)  # noqa: TRY400
