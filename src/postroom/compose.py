"""Compose: settings turned into stores. The one module that does, so that all others are handed what they need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from postroom.brokers.schemes import CLIENTS, load
from postroom.errors import DatabaseUnreachable, InvalidSetting, SchemaMissing
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.routing import ANYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from postroom.brokers.function import Function
    from postroom.brokers.port import Broker
    from postroom.settings import Settings
    from postroom.sources.port import Source
    from postroom.store.connections.limits import Limits
    from postroom.store.connections.stores import BlockingStore, ConnectionFactory
    from postroom.store.sql.names import Names

STARTING = 40.0
"""Seconds for a database to answer for the first time: longer than SQLite waits for a lock."""


def open_store(settings: Settings, *, create: bool = False, limits: Limits | None = None) -> BlockingStore:
    """A store for sync code on the settings' database; whoever opens it closes it.

    An SQLite file is made only with `create`: elsewhere one that is not there is a mistake in its name. Raises
    `InvalidSetting` where no database is given, `SchemaMissing` where the file is not there, `UnsupportedDatabase` or
    `DriverMissing`. Servers are not asked yet.
    """
    if settings.database is None:
        raise InvalidSetting(
            "no database is given: use --database URL or set POSTROOM_DATABASE, for example to sqlite:///app.db"
        )
    from postroom.store.connections import (
        stores,
        urls,  # SQLAlchemy: not for those who only ask for help
    )

    file = urls.file_of(settings.database)
    if file and not create and not Path(file).exists():
        raise SchemaMissing(f"there is no database file {file}: run `postroom init` to create it, or check its name")
    return stores.open_store(settings.database, settings.schema, settings.table_prefix, limits)


def open_async_store(settings: Settings, limits: Limits | None = None) -> ConnectionFactory:
    """A store for async code on the settings' database; whoever opens it closes it. Raises as `open_store` does."""
    from postroom.store.connections import stores, urls

    if settings.database is None or urls.dialect_of_url(settings.database) == "sqlite":
        return stores.ThreadStore(open_store(settings, limits=limits))
    return stores.AsyncStore(settings.database, settings.schema, settings.table_prefix, limits)


def check_tables(names: Names) -> Callable[[Connection], None]:
    """A function for a store's `call` that raises `SchemaError` unless the tables are those of this version."""
    from postroom.store.schema.migrations import check

    return lambda connection: check(connection, names)


async def open_relay_store(
    settings: Settings, purpose: str = "relay", limits: Limits | None = None
) -> ConnectionFactory:
    """A store for a relay on the settings' database; whoever opens it closes it.

    Its tables are what this version works with: raises `SchemaError` otherwise; `PrivilegeMissing` where its user may
    not do what the purpose asks for; `DatabaseUnreachable`, and what `open_store` raises.
    """
    from postroom.store.connections import urls
    from postroom.store.schema.checking import check

    store = open_async_store(settings, limits)
    try:
        async with asyncio.timeout(STARTING):
            await store.call(lambda connection: check(connection, store.names, purpose))
    except TimeoutError:
        await store.close()
        raise DatabaseUnreachable(
            f"the database {urls.shown(settings.database or '')} cannot be reached: no answer within {STARTING:g} s"
        ) from None
    except BaseException:
        await store.close()
        raise
    return store


def as_broker(given: object, settings: Settings, classifier: Classifier) -> tuple[Broker, bool]:
    """The broker that is given: itself, by its URL, or as a function; and whether it was made here.

    Without one, the settings' URL decides. Raises `InvalidSetting`.
    """
    from postroom.brokers.function import FunctionBroker

    if given is None:
        return open_broker(settings, classifier), True
    if isinstance(given, str):
        return broker_at(given, settings, classifier), True
    if hasattr(given, "publish") and hasattr(given, "capabilities"):
        broker: Broker = given  # type: ignore[assignment]  # it has what a broker has
        return broker, False
    function: Function = given  # type: ignore[assignment]  # `check_broker` has looked at it
    return FunctionBroker(function, settings.concurrency, classifier), True


def as_source(given: object, settings: Settings, consumer: str, topics: Sequence[str]) -> tuple[Source | None, bool]:
    """The source that is given: itself, a broker in memory, or by its URL; and whether it was made here.

    Without one, the settings' URL decides; without that too, there is none. Raises `InvalidSetting`.
    """
    from postroom.brokers.memory import MemoryBroker
    from postroom.sources.urls import open_source

    if isinstance(given, MemoryBroker):
        from postroom.sources.memory import MemorySource

        return MemorySource(given, consumer, topics), True
    if given is None or isinstance(given, str):
        url = settings.broker
        is_called = url is None or url.partition(":")[0] in {"http", "https"}  # webhooks come by themselves
        return (None if url is None or is_called else open_source(url, consumer, topics)), True
    if not hasattr(given, "receive") or not hasattr(given, "acknowledge"):
        raise InvalidSetting(f"broker = {given!r} is not one that gives messages: use a URL or a source")
    source: Source = given  # type: ignore[assignment]  # it has what a source has
    return source, False


def broker_for(pattern: str, given: object, settings: Settings, classifier: Classifier) -> tuple[Broker, bool]:
    """The broker of a pattern's topics, as `as_broker` has it. That of all other topics may be none at all."""
    if given is None and settings.broker is None:
        from postroom.brokers.no_broker import NoBroker

        return NoBroker(), True
    try:
        return as_broker(given, settings, classifier)
    except InvalidSetting as error:
        if given is None:
            raise
        raise InvalidSetting(f"the broker for {pattern!r}: {error}") from None


def check_broker(given: object, name: str = "broker") -> None:
    """Raise `InvalidSetting` where something is neither a URL, nor a broker, nor a function."""
    is_broker = hasattr(given, "publish") and hasattr(given, "capabilities")
    if given is not None and not isinstance(given, str) and not is_broker and not callable(given):
        raise InvalidSetting(f"{name} = {given!r} is not one: give a URL, a broker or a function")


def check_brokers(given: object) -> Mapping[str, str] | None:
    """Raise `InvalidSetting` where this is no table of patterns and brokers; returns it as settings have it.

    There a word stands for what has no URL.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"brokers is of the type {type(given).__name__}: give a table of patterns and brokers")
    for pattern, broker in given.items():
        if broker is None:
            raise InvalidSetting(f"brokers[{pattern!r}] is None: give a URL, a broker or a function, or leave it out")
        check_broker(broker, f"brokers[{pattern!r}]")
    return {pattern: broker if isinstance(broker, str) else "python:" for pattern, broker in given.items()}


def check_default(broker: object, settings: Settings) -> None:
    """Raise `InvalidSetting` where two brokers are given for what no other pattern matches."""
    if ANYTHING in settings.brokers and (broker is not None or settings.broker is not None):
        raise InvalidSetting(
            f"`broker` and the pattern {ANYTHING!r} of `brokers` are both given, and both for what no other pattern "
            "matches: leave one of them out"
        )


def open_broker(settings: Settings, classifier: Classifier = DEFAULT_CLASSIFIER) -> Broker:
    """The broker that the settings' URL names. Raises `InvalidSetting` or `DriverMissing`; asks no server yet."""
    if settings.broker is None:
        raise InvalidSetting("no broker is given: use --broker URL or set POSTROOM_BROKER, for example to stdout:")
    return broker_at(settings.broker, settings, classifier)


def broker_at(url: str, settings: Settings, classifier: Classifier) -> Broker:
    """The broker that a URL names. Raises as `open_broker` does."""
    scheme, _, rest = url.partition(":")
    match scheme:
        case "python":
            from postroom.brokers import function

            return function.FunctionBroker(function.load(rest), settings.concurrency, classifier)
        case "stdout":
            from postroom.brokers.stdout import StdoutBroker

            return StdoutBroker()
        case "memory":
            from postroom.brokers.memory import MemoryBroker

            return MemoryBroker()
        case _ if scheme in CLIENTS:
            broker: Broker = load(CLIENTS[scheme].publisher)(url)
            return broker
        case _:
            raise InvalidSetting(
                f"{scheme}: is not a broker that Postroom knows: use amqp://host, https://host/path, kafka://host, "
                "nats://host, redis://host, python:module:function or stdout:"
            )
