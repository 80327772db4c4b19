"""A project that lets Alembic make the tables: autogenerate finds them, makes them, and then has nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from postroom.errors import SchemaMissing
from postroom.store.schema.ddl import completing_statements, schema_statements
from postroom.store.schema.tables import metadata
from tests.contract.schema_support import (
    SYNC,
    assert_complete,
    checked,
    engine_for,
    execute,
    init,
    names_for,
    with_driver,
)
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from postroom.store.sql.names import Names
    from tests.conftest import FreshDatabase

every_database = pytest.mark.parametrize("kind", KINDS)

ENV = """
from alembic import context
from sqlalchemy import MetaData, NullPool, create_engine

from postroom import schema

engine = create_engine({url!r}, poolclass=NullPool)
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=[MetaData(), schema.metadata(engine.dialect.name)],
        include_schemas={include_schemas},
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""
TEMPLATE = """
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
"""


@pytest.fixture
def url(kind: str, fresh_database: FreshDatabase) -> str:
    return fresh_database(kind)


def project(directory: Path, url: str) -> Config:
    """A project's Alembic directory, as a user would have it."""
    (directory / "versions").mkdir()
    include_schemas = url.startswith("postgresql")
    driver_url = with_driver(url, SYNC).render_as_string(hide_password=False)
    (directory / "env.py").write_text(ENV.format(url=driver_url, include_schemas=include_schemas))
    (directory / "script.py.mako").write_text(TEMPLATE)
    config = Config()
    config.set_main_option("script_location", str(directory))
    config.set_main_option("path_separator", "os")
    return config


def difference(engine: Engine, names: Names) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"include_schemas": names.schema is not None, "compare_server_default": True}
        )
        return list(compare_metadata(context, metadata(names)))


@every_database
def test_autogenerate_makes_the_tables_and_then_finds_no_difference(url: str, tmp_path: Path) -> None:
    names = names_for(url)
    config = project(tmp_path, url)
    with engine_for(url) as engine:
        execute(engine, *schema_statements(names))
        command.revision(config, message="postroom", autogenerate=True)
        command.upgrade(config, "head")
        command.check(config)
        checked(engine, names)
        assert init(engine, names) == (None, 7)
        command.check(config)
        assert_complete(engine, names)
        execute(engine, f"DROP VIEW {names.table('outbox_status')}")
        command.downgrade(config, "base")


MIGRATION = """
from alembic import op
from postroom import schema

revision = "1"
down_revision = None

def upgrade():
    schema.create(op.get_bind())
    if {fails}:
        raise RuntimeError("the migration fails")
"""


@every_database
def test_a_migration_creates_the_tables_in_its_transaction(url: str, tmp_path: Path) -> None:
    names = names_for(url)
    config = project(tmp_path, url)
    with engine_for(url) as engine:
        (tmp_path / "versions" / "1_postroom.py").write_text(MIGRATION.format(fails=True))
        with pytest.raises(RuntimeError, match="the migration fails"):
            command.upgrade(config, "head")
        if names.dialect == "postgresql":  # elsewhere Alembic's migrations are not one transaction
            with pytest.raises(SchemaMissing):
                checked(engine, names)
        (tmp_path / "versions" / "1_postroom.py").write_text(MIGRATION.format(fails=False))
        command.upgrade(config, "head")
        assert_complete(engine, names)
        command.check(config)


@every_database
def test_what_init_made_is_what_alembic_expects_down_to_the_defaults(url: str) -> None:
    names = names_for(url)
    with engine_for(url) as engine:
        init(engine, names)
        assert difference(engine, names) == []


@every_database
def test_a_migration_may_complete_the_tables_itself(url: str) -> None:
    names = names_for(url)
    with engine_for(url) as engine:
        execute(engine, *schema_statements(names))
        metadata(names).create_all(engine)
        execute(engine, *completing_statements(names))
        assert_complete(engine, names)
        execute(engine, *completing_statements(names))
        assert_complete(engine, names)
        assert init(engine, names) == (7, 7)
