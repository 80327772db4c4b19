"""The transactions that handlers run in: an ``atomic`` block, with which what they do through the ORM commits."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

from postroom.django import configuration
from postroom.rules.twophase_statements import end_of_transaction
from postroom.runtime.calls import CallFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKEN = (
    "the handler went on after a database error, or called set_rollback(True), and Django undoes such a transaction: "
    "let the error out, or have `with transaction.atomic():` around the statement that may fail"
)
CLOSED = (
    "the handler closed the connection, which undoes its transaction: leave that to the consumer, which closes "
    "connections by CONN_MAX_AGE"
)
_IN_ERROR = 3  # libpq: a statement has failed, and the server will roll back


@contextmanager
def handler_transaction() -> Iterator[Any]:
    """An ``atomic`` block on this thread's connection, which is closed as after a request: by ``CONN_MAX_AGE``.

    Raises `CallFailed` instead of a silent rollback, and for a COMMIT or ROLLBACK that is executed as SQL.
    """
    _close_old_connections()
    try:
        with transaction.atomic(using=configuration.alias()):
            connection = connections[configuration.alias()]
            with connection.execute_wrapper(_refuse_end):
                yield connection
            _require_intact(connection)
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    """As Django does around a request, but never inside a test's transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _require_intact(connection: Any) -> None:
    if connection.closed_in_transaction:
        raise CallFailed(CLOSED)
    status = getattr(getattr(connection.connection, "info", None), "transaction_status", None)
    if connection.needs_rollback or status == _IN_ERROR:
        raise CallFailed(BROKEN)


def _refuse_end(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
    if command := end_of_transaction(str(sql)):
        raise CallFailed(f"the handler executed {command}: leave the end of its transaction to the consumer")
    return execute(sql, params, many, context)
