"""Operations for Django's migrations: create Postroom's tables, upgrade them, drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, router, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation

from postroom.django import configuration
from postroom.errors import SchemaError
from postroom.store.connections.borrowed import borrowed
from postroom.store.schema.ddl import create_statements
from postroom.store.schema.dropping import drop_statements, drop_tables
from postroom.store.schema.migrations import LATEST, upgrade_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from postroom.store.sql.names import Names


class _Tables(Operation):
    """Something done to the tables, in the one database that has them."""

    reversible = True
    reduces_to_sql = True
    elidable = False

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The tables are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Do it."""
        del from_state, to_state
        _if_ours(app_label, schema_editor, self.forwards)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Undo it."""
        del from_state, to_state
        _if_ours(app_label, schema_editor, self.backwards)

    def forwards(self, schema_editor: Any) -> None:
        """Do it in the editor's transaction."""
        raise NotImplementedError

    def backwards(self, schema_editor: Any) -> None:
        """Undo it in the editor's transaction."""
        raise NotImplementedError


class CreateTables(_Tables):
    """Create the tables, as `postroom init` does. Those that are there are upgraded, or left alone if they are right.

    The way back drops them, unless messages wait to be sent.
    """

    def forwards(self, schema_editor: Any) -> None:
        """Create the newest tables."""
        if schema_editor.collect_sql:
            _print(schema_editor, lambda names: create_statements(names.dialect, names))
            return
        _run(schema_editor, upgrade_within)

    def backwards(self, schema_editor: Any) -> None:
        """Drop the tables. Raises `SchemaError` while messages wait in them."""
        if schema_editor.collect_sql:
            _print(schema_editor, drop_statements)
            return
        _run(schema_editor, drop_tables)

    def describe(self) -> str:
        """What `migrate --plan` says."""
        return "Create Postroom's tables"


class UpgradeTables(_Tables):
    """Bring the tables to the newest version, which must be this one or later.

    The way back leaves them: older programs work with newer tables, or say that they do not.
    """

    def __init__(self, to: int) -> None:
        self.to = to

    def forwards(self, schema_editor: Any) -> None:
        """Upgrade the tables. Raises `SchemaError` if this Postroom does not know the version."""
        if self.to > LATEST:
            raise SchemaError(
                f"the migration wants version {self.to} of Postroom's tables, and this Postroom knows versions up to "
                f"{LATEST}: upgrade postroom first"
            )
        if schema_editor.collect_sql:
            schema_editor.collected_sql.append("-- depends on what is in the database: run `migrate`")
            return
        _run(schema_editor, upgrade_within)

    def backwards(self, schema_editor: Any) -> None:
        """Leave the tables as they are."""

    def describe(self) -> str:
        """What `migrate --plan` says."""
        return f"Upgrade Postroom's tables to version {self.to}"


def create_without_migrations(*, using: str, **_: Any) -> None:
    """Create the tables after `migrate`, if settings switch the app's migrations off, as tests do to start sooner.

    Django then makes the tables of models, of which Postroom's are none.
    """
    if MigrationLoader.migrations_module("postroom")[0] is None:
        with connections[using].schema_editor(atomic=connections[using].features.can_rollback_ddl) as schema_editor:
            _if_ours("postroom", schema_editor, CreateTables().forwards)


def _if_ours(app_label: str, schema_editor: Any, act: Callable[[Any], None]) -> None:
    alias = schema_editor.connection.alias
    if alias == configuration.alias() and router.allow_migrate(alias, app_label):
        act(schema_editor)


def _run(schema_editor: Any, act: Callable[[Connection, Names], object]) -> None:
    connection = schema_editor.connection
    names = configuration.names()
    if names.dialect == "mysql":  # which commits at every such statement
        connection.ensure_connection()
        with borrowed(connection.connection, names.dialect) as ours:
            act(ours, names)
        return
    with transaction.atomic(using=connection.alias), borrowed(connection.connection, names.dialect) as ours:
        act(ours, names)


def _print(schema_editor: Any, statements: Callable[[Names], list[str]]) -> None:
    schema_editor.collected_sql.extend(f"{statement};" for statement in statements(configuration.names()))
