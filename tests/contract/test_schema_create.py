"""`postroom.schema`: the tables from code, in one call, sync and async, by a URL, an engine or a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_mock_engine
from sqlalchemy.ext.asyncio import create_async_engine

import postroom
from postroom import schema
from postroom.errors import InvalidSetting, SchemaMissing, UnsupportedConnection, WrongMethod
from tests.contract.schema_support import ASYNC, assert_complete, checked, engine_for, names_for, with_driver
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase

every_database = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def url(kind: str, fresh_database: FreshDatabase) -> str:
    return fresh_database(kind)


@every_database
def test_a_url_or_an_engine_is_all_it_takes(url: str) -> None:
    names = names_for(url, prefix="a_")
    postroom.schema.create(url)
    with engine_for(url) as engine:
        assert_complete(engine, names_for(url))
        schema.create(engine)
        schema.create(engine, table_prefix="a_")
        assert_complete(engine, names)


@every_database
async def test_the_same_from_async_code(url: str) -> None:
    engine = create_async_engine(with_driver(url, ASYNC))
    await schema.acreate(engine, table_prefix="a_")
    await schema.acreate(url, table_prefix="b_")
    async with engine.begin() as connection:
        await schema.acreate(connection, table_prefix="c_")
    await engine.dispose()
    with engine_for(url) as sync_engine:
        for prefix in ("a_", "b_", "c_"):
            assert_complete(sync_engine, names_for(url, prefix=prefix))


@every_database
def test_with_a_connection_it_happens_in_the_callers_transaction(url: str) -> None:
    with engine_for(url) as engine:
        with engine.connect() as connection:
            schema.create(connection)
            connection.rollback()
        if names_for(url).dialect != "mysql":  # whose DDL commits
            with pytest.raises(SchemaMissing):
                checked(engine, names_for(url))
        with engine.begin() as connection:
            schema.create(connection)
            schema.create(connection)
        assert_complete(engine, names_for(url))


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_the_wrong_thing_is_told_the_right_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_async_engine(with_driver(url, ASYNC))
    with pytest.raises(WrongMethod, match=r"AsyncEngine belongs to postroom\.schema\.acreate"):
        schema.create(engine)  # type: ignore[arg-type]  # that is what is wrong
    await engine.dispose()
    with (
        engine_for(url) as sync_engine,
        pytest.raises(WrongMethod, match=r"Engine belongs to postroom\.schema\.create"),
    ):
        await schema.acreate(sync_engine)  # type: ignore[arg-type]  # as above
    with pytest.raises(UnsupportedConnection, match="int is not a database: pass a URL, or an SQLAlchemy Engine"):
        schema.create(7)  # type: ignore[arg-type]  # as above
    offline = create_mock_engine("postgresql+psycopg://", print)  # what Alembic gives with --sql
    with pytest.raises(UnsupportedConnection, match=r"offline mode .* `postroom schema --sql`"):
        schema.create(offline)  # type: ignore[arg-type]  # as above
    monkeypatch.delenv("POSTROOM_DATABASE", raising=False)
    with pytest.raises(InvalidSetting, match="no database is given"):
        schema.create()
