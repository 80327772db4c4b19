"""Postroom's tables in a project's Alembic migrations.

Import it in ``env.py``::

    import postroom.alembic

    context.configure(..., include_name=postroom.alembic.include_name)

Then ``alembic revision --autogenerate`` never proposes to drop the tables, and writes into the next migration what they
need: ``op.create_postroom_tables()``, or ``op.upgrade_postroom_tables(to=…)`` for those of an older Postroom.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from alembic.autogenerate import comparators, renderers
from alembic.operations import MigrateOperation, Operations
from alembic.util import DispatchPriority
from sqlalchemy import MetaData

from postroom.errors import InvalidSetting, SchemaError
from postroom.settings import Settings
from postroom.store.schema.ddl import create_statements
from postroom.store.schema.dropping import KEYS, drop_statements, drop_tables
from postroom.store.schema.migrations import LATEST, upgrade_within
from postroom.store.schema.versions import current_version
from postroom.store.sql.names import TABLES, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps

    IncludeName = Callable[[Any, Any, Any], bool]

OWN = {*TABLES.values(), KEYS}
PARTITION = re.compile(r"outbox(_receipt)?_p(\d+|rest)")

__all__ = ["CreateTables", "DropTables", "UpgradeTables", "include_name", "include_names"]


class _Tables(MigrateOperation):
    """Something done to the tables, which are where the settings say, or in the given schema, with the given prefix."""

    def __init__(self, schema: str | None = None, table_prefix: str | None = None) -> None:
        self.schema = schema
        self.table_prefix = table_prefix

    def names(self, dialect: str) -> Names:
        """Where the tables are."""
        settings = Settings.load(schema=self.schema, table_prefix=self.table_prefix)
        return Names.of(dialect, settings.schema, settings.table_prefix)

    def arguments(self) -> dict[str, Any]:
        """What was given, for the text of a migration."""
        given = {"schema": self.schema, "table_prefix": self.table_prefix}
        return {name: value for name, value in given.items() if value is not None}


@Operations.register_operation("create_postroom_tables", "add_to")
class CreateTables(_Tables):
    """``op.create_postroom_tables()``: create the tables, as `postroom init` does, in the migration's transaction."""

    @classmethod
    def add_to(cls, operations: Operations, *, schema: str | None = None, table_prefix: str | None = None) -> None:
        """Create Postroom's tables. Those that are there are upgraded, or left alone if they are right."""
        operations.invoke(cls(schema, table_prefix))

    def reverse(self) -> DropTables:
        """What undoes it."""
        return DropTables(self.schema, self.table_prefix)


@Operations.register_operation("upgrade_postroom_tables", "add_to")
class UpgradeTables(_Tables):
    """``op.upgrade_postroom_tables(to=7)``: bring the tables to the newest version, which must be that one or later."""

    def __init__(self, to: int, schema: str | None = None, table_prefix: str | None = None) -> None:
        super().__init__(schema, table_prefix)
        self.to = to

    @classmethod
    def add_to(
        cls, operations: Operations, *, to: int, schema: str | None = None, table_prefix: str | None = None
    ) -> None:
        """Upgrade Postroom's tables to the newest version; raises `SchemaError` if that is older than `to`."""
        operations.invoke(cls(to, schema, table_prefix))

    def arguments(self) -> dict[str, Any]:
        """What was given, for the text of a migration."""
        return {"to": self.to, **super().arguments()}

    def reverse(self) -> LeaveTables:
        """Upgrades are not undone: older programs work with newer tables, or say that they do not."""
        return LeaveTables(self.schema, self.table_prefix)


@Operations.register_operation("drop_postroom_tables", "add_to")
class DropTables(_Tables):
    """``op.drop_postroom_tables()``: drop the tables, unless messages wait to be sent."""

    @classmethod
    def add_to(cls, operations: Operations, *, schema: str | None = None, table_prefix: str | None = None) -> None:
        """Drop Postroom's tables. Raises `SchemaError` while messages wait in them."""
        operations.invoke(cls(schema, table_prefix))

    def reverse(self) -> CreateTables:
        """What undoes it."""
        return CreateTables(self.schema, self.table_prefix)


class LeaveTables(_Tables):
    """Do nothing: the way back of an upgrade."""

    def reverse(self) -> LeaveTables:
        """What undoes it."""
        return self


@Operations.implementation_for(CreateTables)
def _create(operations: Operations, operation: CreateTables) -> None:
    context = operations.migration_context
    names = operation.names(context.dialect.name)
    if context.as_sql:
        for statement in create_statements(names.dialect, names):
            context.impl.static_output(f"{statement};")
        return
    upgrade_within(operations.get_bind(), names)


@Operations.implementation_for(UpgradeTables)
def _upgrade(operations: Operations, operation: UpgradeTables) -> None:
    if type(operation.to) is not int or operation.to < 1:
        raise InvalidSetting(f"to={operation.to!r} is no version of Postroom's tables: pass a number, such as {LATEST}")
    if operation.to > LATEST:
        raise SchemaError(
            f"the migration wants version {operation.to} of Postroom's tables, and this Postroom knows versions up to "
            f"{LATEST}: upgrade postroom first"
        )
    context = operations.migration_context
    if context.as_sql:
        raise SchemaError(
            "an upgrade of Postroom's tables depends on what is in the database, which Alembic's offline mode does not "
            "see: run this migration online, or run `postroom init`"
        )
    upgrade_within(operations.get_bind(), operation.names(context.dialect.name))


@Operations.implementation_for(DropTables)
def _drop(operations: Operations, operation: DropTables) -> None:
    context = operations.migration_context
    names = operation.names(context.dialect.name)
    if context.as_sql:
        for statement in drop_statements(names):
            context.impl.static_output(f"{statement};")
        return
    drop_tables(operations.get_bind(), names)


def include_names(
    other: IncludeName | None = None, *, schema: str | None = None, table_prefix: str | None = None
) -> IncludeName:
    """An ``include_name`` for Alembic that leaves Postroom's tables alone, and asks `other` about the rest.

    They are looked for where the settings say, or in the given schema, with the given prefix.
    """
    settings = Settings.load(schema=schema, table_prefix=table_prefix)

    def include(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
        return not _is_ours(name, kind, parents, settings) and (other is None or other(name, kind, parents))

    return include


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """``include_name`` for Alembic's ``context.configure``: leaves Postroom's tables alone, where the settings say."""
    return include_names()(name, type_, parent_names)


def _is_ours(name: str | None, kind: str, parents: Mapping[str, str | None], settings: Settings) -> bool:
    """Whether this is one of our tables, or a part of one. Alembic does not say which database it is."""
    table = name if kind == "table" else parents.get("table_name")
    schema = parents.get("schema_name")
    if table is None or kind == "schema":
        return False
    prefixes = ["", "postroom_"] if settings.table_prefix is None else [settings.table_prefix]
    if schema is None:
        if settings.schema not in {None, "public"}:
            return False
        prefixes = [prefix for prefix in prefixes if prefix or settings.schema == "public"]
    elif schema != (settings.schema or "postroom"):
        return False
    return any(
        table.startswith(prefix) and (own := table.removeprefix(prefix)) and (own in OWN or PARTITION.fullmatch(own))
        for prefix in prefixes
    )


# Last, so that the way back begins with it: it may refuse, and not every database undoes what came before.
@comparators.dispatch_for("schema", priority=DispatchPriority.LAST)
def _compare(context: AutogenContext, operations: UpgradeOps, schemas: object) -> None:
    """Have autogenerate write what the tables need."""
    del schemas
    connection = context.connection
    if connection is None:
        return
    names = CreateTables().names(connection.dialect.name)
    version = current_version(connection, names)
    if version is None:
        if not _are_in_metadata(context, names):
            operations.ops.append(CreateTables())
    elif version < LATEST:
        operations.ops.append(UpgradeTables(LATEST))


def _are_in_metadata(context: AutogenContext, names: Names) -> bool:
    """Whether the project has the tables made from `postroom.schema.metadata`."""
    given = context.metadata
    every = [] if given is None else [given] if isinstance(given, MetaData) else given
    key = names.bare("outbox") if names.schema is None else f"{names.schema}.{names.bare('outbox')}"
    return any(key in one.tables for one in every)


@renderers.dispatch_for(CreateTables)
@renderers.dispatch_for(UpgradeTables)
@renderers.dispatch_for(DropTables)
def _render(context: AutogenContext, operation: _Tables) -> str:
    context.imports.add("import postroom.alembic  # op.create_postroom_tables and its like")
    name = {CreateTables: "create", UpgradeTables: "upgrade", DropTables: "drop"}[type(operation)]
    given = ", ".join(f"{argument}={value!r}" for argument, value in operation.arguments().items())
    return f"op.{name}_postroom_tables({given})"


@renderers.dispatch_for(LeaveTables)
def _render_nothing(context: AutogenContext, operation: LeaveTables) -> str:
    del context, operation
    return "pass  # Postroom's tables stay as they are: upgrades are not undone"
