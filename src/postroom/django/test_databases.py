"""Test databases: a ``TransactionTestCase`` empties Postroom's tables, too."""

from __future__ import annotations

from typing import Any

from django.core import mail
from django.db import connections, transaction

from postroom.django import configuration
from postroom.store.schema.emptying import empty_statements


def empty_after_flush(*, using: str, **told: Any) -> None:
    """Empty the tables when the database of a test was flushed, which Django does for those of models alone.

    Django tells of a flush as of a migration, but for the plan. Applications may do so as well to get permissions and
    the like made, so nothing is emptied outside of tests.
    """
    if "plan" not in told and hasattr(mail, "outbox") and using == configuration.alias():  # which only tests have
        empty()


def empty() -> None:
    """Remove every message, mark, key, saga and audit entry, in a transaction. For tests."""
    names, connection = configuration.names(), connections[configuration.alias()]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        for statement in empty_statements(names):
            cursor.execute(statement)
