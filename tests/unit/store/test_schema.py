from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom import schema
from postroom.store.schema.ddl import completing_statements, create_statements
from postroom.store.schema.grants import FIRST_COLUMNS
from postroom.store.schema.migrations import LATEST, UPGRADES
from postroom.store.schema.tables import metadata
from postroom.store.sql.names import LONGEST_NAME, MAX_IDENTIFIER, TABLES, Names

if TYPE_CHECKING:
    from sqlalchemy import Index, MetaData, Table

DIALECTS = ("postgresql", "mysql", "sqlite")
CHANGED_BY_A_CLAIM = {"leased_until", "token", "owner", "claims"}

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def tables_of(tables: MetaData, names: Names) -> dict[str, Table]:
    return {table.name.removeprefix(names.prefix): table for table in tables.tables.values()}


def delivery_of(dialect: str) -> Table:
    names = Names.of(dialect)
    return tables_of(metadata(names), names)["outbox_delivery"]


def condition(index: Index, dialect: str) -> str:
    return str(index.dialect_options[dialect]["where"])


@every_dialect
def test_the_tables_are_those_that_sql_templates_name(dialect: str) -> None:
    names = Names.of(dialect)
    assert set(tables_of(metadata(names), names)) == set(TABLES.values()) - {
        "outbox_status",
        *(() if dialect == "postgresql" else ("outbox_stream",)),
    }


def test_every_database_has_the_same_tables_and_columns_but_for_the_stream() -> None:
    shapes = []
    for dialect in DIALECTS:
        names = Names.of(dialect)
        tables = tables_of(metadata(names), names)
        shape = {name: [(c.name, c.nullable, c.primary_key) for c in t.columns] for name, t in tables.items()}
        if dialect == "postgresql":
            shape["outbox"].remove(("streamed", False, False))
            shape.pop("outbox_stream")
        shapes.append(shape)
    assert shapes[0] == shapes[1] == shapes[2]


@every_dialect
def test_only_the_key_hash_of_a_delivery_may_be_null_and_all_else_has_a_default(dialect: str) -> None:
    columns = delivery_of(dialect).columns
    assert [column.name for column in columns if column.nullable] == ["key_hash"]
    assert [column.name for column in columns if column.server_default is None] == ["position", "key_hash"]


@every_dialect
def test_what_a_claim_changes_is_in_no_index_and_no_condition(dialect: str) -> None:
    delivery = delivery_of(dialect)
    indexed = {column.name for index in delivery.indexes for column in index.columns}
    assert not CHANGED_BY_A_CLAIM & (indexed | {column.name for column in delivery.primary_key})
    for index in delivery.indexes:
        assert not any(column in condition(index, "postgresql") for column in CHANGED_BY_A_CLAIM)


@every_dialect
def test_the_primary_key_of_deliveries_serves_claims_of_both_kinds(dialect: str) -> None:
    assert [column.name for column in delivery_of(dialect).primary_key] == ["state", "queue", "lane", "position"]


def test_indexes_are_partial_where_the_database_has_partial_indexes() -> None:
    for dialect in ("postgresql", "sqlite"):
        due, key = sorted(delivery_of(dialect).indexes, key=lambda index: str(index.name))
        assert condition(due, dialect) == "state IN (1, 2)"
        assert condition(key, dialect) == "state IN (2, 3)"
    due, key = sorted(delivery_of("mysql").indexes, key=lambda index: str(index.name))
    assert [column.name for column in due.columns] == ["state", "queue", "lane", "due", "position"]
    assert [column.name for column in key.columns] == ["queue", "key_hash", "state", "position"]


@every_dialect
def test_no_derived_name_exceeds_what_every_database_keeps_whole(dialect: str) -> None:
    names = Names.of(dialect, prefix="p" * (MAX_IDENTIFIER - len(LONGEST_NAME)))
    derived = {names.bare(name) for name in (*TABLES.values(), "add")}
    for table in metadata(names).tables.values():
        derived |= {f"{table.name}_pkey", *(str(index.name) for index in table.indexes)}
        derived |= {f"{table.name}_{column.name}_seq" for column in table.columns if column.identity}
    assert max(map(len, derived)) == MAX_IDENTIFIER


def test_alembic_gets_the_tables_by_dialect_schema_and_prefix() -> None:
    assert "shop.mail_outbox" in schema.metadata("postgresql", "shop", "mail_").tables
    assert "postroom.outbox" in schema.metadata().tables
    assert "postroom_outbox" in schema.metadata("sqlite").tables


@every_dialect
def test_the_ddl_is_the_same_text_every_time(dialect: str) -> None:
    names = Names.of(dialect)
    assert create_statements(dialect, names) == create_statements(dialect, names)


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_no_statement_holds_what_a_driver_takes_for_a_parameter(dialect: str) -> None:
    assert not any("%" in statement for statement in create_statements(dialect, Names.of(dialect)))


def test_the_ddl_creates_the_schema_on_postgresql_unless_it_is_always_there() -> None:
    assert create_statements("postgresql", Names.of("postgresql"))[0] == 'CREATE SCHEMA IF NOT EXISTS "postroom"'
    assert "SCHEMA" not in create_statements("postgresql", Names.of("postgresql", "public", "postroom_"))[0]
    assert "SCHEMA" not in create_statements("mariadb", Names.of("mysql", "shop"))[0]


def test_names_of_another_dialect_are_refused() -> None:
    with pytest.raises(ValueError, match="the names are for sqlite, not for postgresql"):
        create_statements("postgresql", Names.of("sqlite"))


@every_dialect
def test_the_ddl_ends_with_the_version_of_the_tables(dialect: str) -> None:
    assert f"({LATEST})" in completing_statements(Names.of(dialect))[-1]


def test_every_version_but_the_last_has_its_upgrade() -> None:
    assert len(UPGRADES) == LATEST - 1


def test_the_columns_on_which_privileges_are_tried_are_there() -> None:
    for table in metadata(Names.of("mysql", prefix="")).tables.values():
        assert FIRST_COLUMNS.get(table.name, "position") in table.columns
