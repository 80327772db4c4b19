"""What a relay's line makes of errors, as the drivers raise them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from postroom.store.connections.reconnecting import Database, Outage
from postroom.store.connections.stores import AsyncStore, Store, ThreadStore
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from postroom.store.connections.stores import ConnectionFactory
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Event
    from tests.conftest import FreshDatabase

drivers = pytest.mark.parametrize(
    ("kind", "driver"),
    [
        ("sqlite", "sqlite+pysqlite"),
        ("postgresql", "postgresql+asyncpg"),
        ("postgresql", "postgresql+psycopg"),
        ("mariadb", "mysql+asyncmy"),
        ("mariadb", "mysql+aiomysql"),
    ],
)


def half_a_character() -> Steps[None]:
    yield Query("SELECT :word", {"word": "\udc80"})


def fine() -> Steps[None]:
    yield Query("SELECT 1")


@drivers
async def test_R_5_what_cannot_be_written_as_a_parameter_is_no_outage(
    kind: str, driver: str, fresh_database: FreshDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_url(fresh_database(kind)).set(drivername=driver).render_as_string(hide_password=False)
    store: ConnectionFactory = ThreadStore(Store(url)) if kind == "sqlite" else AsyncStore(url)
    told: list[Event] = []
    line = Database(store, told.append).connect()
    for _ in range(2):
        with pytest.raises(Outage):
            await line.attempt(half_a_character())
        await line.attempt(fine())
    await line.close()
    await store.close()
    assert told == []
    assert len([record for record in caplog.records if record.name == "postroom"]) == 1
