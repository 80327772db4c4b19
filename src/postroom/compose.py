"""Compose: settings turned into stores. The one module that does, so that all others are handed what they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting, SchemaMissing

if TYPE_CHECKING:
    from postroom.brokers.port import Broker
    from postroom.relay.office import Options
    from postroom.settings import Settings
    from postroom.store.stores import AsyncStore, BlockingStore


def open_store(settings: Settings, *, create: bool = False) -> BlockingStore:
    """A store for sync code on the settings' database; whoever opens it closes it.

    An SQLite file is made only with `create`: elsewhere one that is not there is a mistake in its name. Raises
    `InvalidSetting` where no database is given, `SchemaMissing` where the file is not there, `UnsupportedDatabase` or
    `DriverMissing`. Servers are not asked yet.
    """
    if settings.database is None:
        raise InvalidSetting(
            "no database is given: use --database URL or set POSTROOM_DATABASE, for example to sqlite:///app.db"
        )
    from postroom.store import stores, urls  # SQLAlchemy: not for those who only ask for help

    file = urls.file_of(settings.database)
    if file and not create and not Path(file).exists():
        raise SchemaMissing(f"there is no database file {file}: run `postroom init` to create it, or check its name")
    return stores.open_store(settings.database, settings.schema, settings.table_prefix)


def open_async_store(settings: Settings) -> AsyncStore:
    """A store for async code on the settings' database; whoever opens it closes it."""
    if settings.database is None:
        raise InvalidSetting("no database is given: use --database URL or set POSTROOM_DATABASE")
    from postroom.store.stores import AsyncStore

    return AsyncStore(settings.database, settings.schema, settings.table_prefix)


def open_broker(settings: Settings, options: Options) -> Broker:
    """The broker that the settings' URL names. Raises `InvalidSetting`."""
    url = settings.broker
    if url is None:
        raise InvalidSetting("no broker is given: use --broker URL or set POSTROOM_BROKER, for example to stdout:")
    scheme, _, rest = url.partition(":")
    match scheme:
        case "python":
            from postroom.brokers import function

            return function.FunctionBroker(function.load(rest), options.concurrency, options.classifier)
        case "stdout":
            from postroom.brokers.stdout import StdoutBroker

            return StdoutBroker()
        case "memory":
            from postroom.brokers.memory import MemoryBroker

            return MemoryBroker()
        case _:
            raise InvalidSetting(
                f"{scheme}: is not a broker that Postroom knows: use python:module:function or stdout:"
            )
