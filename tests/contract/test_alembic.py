"""A project that lets Alembic make the tables: autogenerate finds them, makes them, and then has nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from postroom import Outbox
from postroom.alembic import include_names
from postroom.errors import PostroomError, SchemaError, SchemaMissing
from postroom.store.schema.ddl import completing_statements, create_statements, schema_statements
from postroom.store.schema.migrations import LATEST
from postroom.store.schema.tables import metadata
from tests.contract.schema_support import (
    SYNC,
    assert_complete,
    checked,
    count,
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
        assert init(engine, names) == (None, LATEST)
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
        assert init(engine, names) == (LATEST, LATEST)


OWN_ENV = """
import postroom.alembic
from alembic import context
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine

own = MetaData()
Table("orders", own, Column("id", Integer, primary_key=True))
if context.is_offline_mode():
    context.configure(dialect_name={dialect!r}, target_metadata=own)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine({url!r}, poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=own,
            include_name=postroom.alembic.include_name,
            include_schemas={include_schemas},
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""


def own_project(directory: Path, url: str) -> Config:
    """A project whose `env.py` imports `postroom.alembic`, and whose own table is `orders`."""
    config = project(directory, url)
    driver_url = with_driver(url, SYNC)
    (directory / "env.py").write_text(
        OWN_ENV.format(
            url=driver_url.render_as_string(hide_password=False),
            include_schemas=url.startswith("postgresql"),
            dialect=driver_url.get_backend_name(),
        )
    )
    return config


@every_database
def test_autogenerate_writes_our_operations_and_never_drops_our_tables(url: str, tmp_path: Path) -> None:
    names = names_for(url)
    config = own_project(tmp_path, url)
    with engine_for(url) as engine:
        command.revision(config, message="first", autogenerate=True)
        [script] = (tmp_path / "versions").glob("*_first.py")
        written = script.read_text()
        assert "op.create_postroom_tables()" in written
        assert "op.drop_postroom_tables()" in written
        assert "orders" in written
        assert "outbox" not in written
        command.upgrade(config, "head")
        assert_complete(engine, names)
        command.check(config)
        execute(engine, f"DELETE FROM {names.table('schema_version')} WHERE version = {LATEST}")
        command.revision(config, message="second", autogenerate=True)
        [script] = (tmp_path / "versions").glob("*_second.py")
        assert f"op.upgrade_postroom_tables(to={LATEST})" in script.read_text()
        command.upgrade(config, "head")
        assert_complete(engine, names)
        command.check(config)
        with engine.begin() as connection:
            Outbox().add(connection, "orders", {"id": 1})
        command.downgrade(config, "-1")
        with pytest.raises(SchemaError, match=r"1 messages of .* are not settled"):
            command.downgrade(config, "base")
        execute(engine, f"DELETE FROM {names.table('outbox_delivery')}")
        command.downgrade(config, "base")
        with pytest.raises(SchemaMissing):
            checked(engine, names)
        if names.dialect == "postgresql":
            assert count(engine, "pg_proc WHERE pronamespace = 'postroom'::regnamespace") == 0


OPERATIONS = """
import postroom.alembic
from alembic import op

revision = "1"
down_revision = None

def upgrade():
    op.{operation}

def downgrade():
    op.drop_postroom_tables()
"""


@every_database
def test_without_a_connection_the_operations_print_sql(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = own_project(tmp_path, url)
    script = tmp_path / "versions" / "1_postroom.py"
    script.write_text(OPERATIONS.format(operation="create_postroom_tables()"))
    command.upgrade(config, "head", sql=True)
    printed = capsys.readouterr().out
    for statement in create_statements(names_for(url).dialect, names_for(url)):
        assert f"{statement};" in printed
    command.downgrade(config, "1:base", sql=True)
    assert "DROP TABLE IF EXISTS" in capsys.readouterr().out
    script.write_text(OPERATIONS.format(operation=f"upgrade_postroom_tables(to={LATEST})"))
    with pytest.raises(SchemaError, match="run this migration online"):
        command.upgrade(config, "head", sql=True)


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    ("to", "refusal"), [(f"{LATEST + 1}", "upgrade postroom first"), ("0", "to=0"), ("'6'", "to='6'")]
)
def test_an_upgrade_to_what_is_not_known_is_refused(url: str, tmp_path: Path, to: str, refusal: str) -> None:
    config = own_project(tmp_path, url)
    (tmp_path / "versions" / "1_postroom.py").write_text(
        OPERATIONS.format(operation=f"upgrade_postroom_tables(to={to})")
    )
    with pytest.raises(PostroomError, match=refusal):
        command.upgrade(config, "head")


@pytest.mark.parametrize(
    ("settings", "table", "schema", "is_included"),
    [
        ({}, "postroom_outbox", None, False),
        ({}, "outbox", None, True),
        ({}, "outbox", "postroom", False),
        ({}, "outbox_p17", "postroom", False),
        ({}, "outbox_products", "postroom", True),
        ({}, "outbox", "shop", True),
        ({"schema": "public"}, "outbox", None, False),
        ({"schema": "public"}, "orders", None, True),
        ({"schema": "events"}, "inbox", "events", False),
        ({"schema": "events"}, "postroom_inbox", None, True),
        ({"table_prefix": "pr_"}, "pr_saga", None, False),
        ({"table_prefix": "pr_"}, "postroom_saga", None, True),
    ],
)
def test_only_our_tables_are_left_out(
    settings: dict[str, str], table: str, schema: str | None, *, is_included: bool
) -> None:
    include = include_names(lambda name, *_: name != "theirs", **settings)
    assert include(table, "table", {"schema_name": schema}) is is_included
    assert include("an_index", "index", {"schema_name": schema, "table_name": table}) is is_included
    assert include(schema, "schema", {})
    assert not include("theirs", "table", {"schema_name": None})
