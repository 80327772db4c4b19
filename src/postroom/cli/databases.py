"""The database that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.compose import open_store
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.store.connections.stores import BlockingStore


@contextmanager
def opened(settings: Settings, *, create: bool = False) -> Iterator[BlockingStore]:
    """A store on the database, whatever is in it."""
    store = open_store(settings, create=create)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def checked(settings: Settings) -> Iterator[BlockingStore]:
    """A store whose tables are what this version works with; raises `SchemaError` where they are not."""
    from postroom.store.schema.migrations import check

    with opened(settings) as store:
        store.call(lambda connection: check(connection, store.names))
        yield store
