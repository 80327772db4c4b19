"""Open the database that settings name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.errors import DatabaseUnreachable, InvalidSetting, SchemaMissing

if TYPE_CHECKING:
    from postroom.settings import Settings
    from postroom.store.connections.limits import Limits
    from postroom.store.connections.stores import BlockingStore, ConnectionFactory
    from postroom.store.schema.purposes import Purpose

STARTING = 40.0
"""Seconds for a database to answer for the first time: longer than SQLite waits for a lock."""


def open_store(settings: Settings, *, create: bool = False, limits: Limits | None = None) -> BlockingStore:
    """Open a store for sync code; the caller closes it. Servers are not contacted yet.

    Raises `InvalidSetting` if no database is given, `UnsupportedDatabase`, `DriverMissing`, and `SchemaMissing` if an
    SQLite file is not there and `create` is false: then its name is a mistake.
    """
    if settings.database is None:
        raise InvalidSetting(
            "no database is given: pass its URL, use --database URL or set POSTROOM_DATABASE, for example to "
            "sqlite:///app.db"
        )
    from postroom.store.connections import stores, urls  # not for `--help`

    file = urls.file_of(settings.database)
    if file and not create and not Path(file).exists():
        raise SchemaMissing(f"there is no database file {file}: run `postroom init` to create it, or check its name")
    return stores.open_store(settings.database, settings.schema, settings.table_prefix, limits)


def open_async_store(settings: Settings, limits: Limits | None = None) -> ConnectionFactory:
    """Open a store for async code; the caller closes it. Raises as `open_store` does."""
    from postroom.store.connections import stores, urls

    if settings.database is None or urls.dialect_of_url(settings.database) == "sqlite":
        return stores.ThreadStore(open_store(settings, limits=limits))
    return stores.AsyncStore(settings.database, settings.schema, settings.table_prefix, limits)


async def open_checked_store(settings: Settings, *purposes: Purpose, limits: Limits | None = None) -> ConnectionFactory:
    """Open a store for async code whose tables and privileges have been checked; the caller closes it.

    Raises `SchemaError` if the tables are not those of this version, `PrivilegeMissing` if the database's user may not
    do what the purposes need, `DatabaseUnreachable`, and what `open_store` raises.
    """
    from postroom.store.connections import urls
    from postroom.store.schema.checking import check

    store = open_async_store(settings, limits)
    try:
        async with asyncio.timeout(STARTING):
            async with store.connection() as run:
                await run(check(store.names, *purposes))
    except TimeoutError:
        await store.close()
        raise DatabaseUnreachable(
            f"the database {urls.shown(settings.database or '')} cannot be reached: no answer within {STARTING:g} s"
        ) from None
    except BaseException:
        await store.close()
        raise
    return store
