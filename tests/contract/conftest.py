"""Fixtures of the store's contract suite: see `store_drivers`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from tests.contract.store_drivers import DRIVERS, Driver, Room
from tests.contract.write_support import prepared
from tests.services.databases import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import FreshDatabase
    from tests.contract.connection_callers import Caller
    from tests.contract.connection_kinds import Kind
    from tests.contract.write_support import Database, Databases


@pytest.fixture(scope="session")
def contract_database() -> Iterator[Callable[[str], str]]:
    """Give `contract_database(kind) -> URL`: one database of each kind for the whole suite, with the tables."""
    urls: dict[str, str] = {}
    with ExitStack() as databases:

        def url_of(kind: str) -> str:
            if kind not in urls:
                urls[kind] = databases.enter_context(fresh_database(kind))
                with closing(Store(urls[kind])) as store:
                    store.call(lambda connection: upgrade(connection, store.names))
            return urls[kind]

        yield url_of


@pytest.fixture(scope="module", params=DRIVERS, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


@pytest.fixture(scope="module")
def opened_room(driver: Driver, contract_database: Callable[[str], str]) -> Iterator[Room]:
    url = contract_database(driver.kind)
    with (
        closing(driver.open(url)) as store,
        closing(Store(url)) as producer,
        closing(Room(store, driver, producer, url)) as room,
    ):
        yield room


@pytest.fixture
def room(opened_room: Room) -> Room:
    """A store with empty tables, once for each driver."""
    opened_room.empty()
    return opened_room


@pytest.fixture
def neighbour(room: Room) -> Store:
    """Another program on the room's database: for locks and transactions that stay open meanwhile."""
    return room.producer


@pytest.fixture(scope="module")
def databases(module_database: FreshDatabase) -> Iterator[Databases]:
    """A database of each kind for a module's tests, with the tables and one of a service's own."""
    with prepared(module_database) as databases:
        yield databases


@pytest.fixture
def database(kind: Kind, databases: Databases) -> Database:
    return databases[kind.database]


@pytest.fixture
def caller(kind: Kind, database: Database) -> Iterator[Caller]:
    """An application's connection of this kind, in an open transaction."""
    with kind.open(database.url) as caller:
        caller.begin()
        yield caller
