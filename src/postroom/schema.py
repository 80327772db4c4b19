"""Create or upgrade Postroom's tables from code, as `postroom init` does.

::

    schema.create("postgresql://…/shop")         # or an SQLAlchemy Engine
    await schema.acreate(async_engine)
    schema.create(op.get_bind())                 # in an Alembic migration, in its transaction
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.compose.databases import open_store
from postroom.errors import UnsupportedConnection, WrongMethod
from postroom.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from postroom.store.sql.names import Names

__all__ = ["acreate", "create", "metadata"]


def create(
    database: str | Engine | Connection | None = None, *, schema: str | None = None, table_prefix: str | None = None
) -> None:
    """Create Postroom's tables, or upgrade them. Safe to call at every start, and from several processes at once.

    ``database`` is a URL (by default that of the settings) or an SQLAlchemy Engine: everything is committed when this
    returns. Or it is a Connection: everything happens in its transaction, which the caller commits. On MySQL and
    MariaDB every DDL statement commits by itself. Raises `SchemaError` if a newer Postroom made the tables, or if some
    are missing.
    """
    from sqlalchemy import Connection, Engine

    from postroom.store.schema.migrations import upgrade, upgrade_within

    settings = Settings.load(
        database=database if isinstance(database, str) else None, schema=schema, table_prefix=table_prefix
    )
    match database:
        case None | str():
            store = open_store(settings, create=True)
            try:
                store.call(lambda connection: upgrade(connection, store.names))
            finally:
                store.close()
        case Engine():
            with database.connect() as connection:
                upgrade(connection, _names(connection, settings))
        case Connection():
            upgrade_within(database, _names(database, settings))
        case _:
            raise _refusal(database, "create", "acreate", asynchronous=True)


async def acreate(
    database: str | AsyncEngine | AsyncConnection | None = None,
    *,
    schema: str | None = None,
    table_prefix: str | None = None,
) -> None:
    """`create` with a URL, an AsyncEngine or an AsyncConnection."""
    from postroom.store.schema.migrations import upgrade, upgrade_within

    settings = Settings.load(
        database=database if isinstance(database, str) else None, schema=schema, table_prefix=table_prefix
    )
    if database is None or isinstance(database, str):
        import asyncio

        await asyncio.get_running_loop().run_in_executor(
            None, lambda: create(database, schema=schema, table_prefix=table_prefix)
        )
        return
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    match database:
        case AsyncEngine():
            async with database.connect() as connection:
                await connection.run_sync(upgrade, _names(connection.sync_connection, settings))
        case AsyncConnection():
            await database.run_sync(upgrade_within, _names(database.sync_connection, settings))
        case _:
            raise _refusal(database, "acreate", "create", asynchronous=False)


def metadata(dialect: str = "postgresql", schema: str | None = None, table_prefix: str | None = None) -> MetaData:
    """The tables as SQLAlchemy MetaData, for projects whose Alembic autogenerates migrations.

    In ``env.py``: ``target_metadata = [Base.metadata, postroom.schema.metadata("postgresql")]``. On PostgreSQL, Alembic
    looks into other schemas only with ``include_schemas=True``, and does not create them. MetaData cannot hold
    everything: let the migration also call ``postroom.schema.create(op.get_bind())``, which adopts the tables.
    """
    from postroom.store.schema import tables
    from postroom.store.sql.names import Names

    return tables.metadata(Names.of(dialect, schema, table_prefix))


def _names(connection: Connection | None, settings: Settings) -> Names:
    from postroom.store.sql.names import Names

    assert connection is not None  # noqa: S101 - an open AsyncConnection has one
    return Names.of(connection.dialect.name, settings.schema, settings.table_prefix)


def _refusal(given: object, method: str, twin: str, *, asynchronous: bool) -> TypeError:
    name = f"{type(given).__module__}.{type(given).__qualname__}"
    if name.startswith("sqlalchemy.ext.asyncio" if asynchronous else "sqlalchemy.engine"):
        return WrongMethod(f"{name} belongs to postroom.schema.{twin}, not to {method}")
    if name == "sqlalchemy.engine.mock.MockConnection":
        return UnsupportedConnection(
            "Alembic's offline mode has no connection: put what `postroom schema --sql` prints into the script"
        )
    kinds = "AsyncEngine or AsyncConnection" if method == "acreate" else "Engine or Connection"
    return UnsupportedConnection(f"{name} is not a database: pass a URL, or an SQLAlchemy {kinds}")
