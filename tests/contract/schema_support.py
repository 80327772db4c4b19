"""What the tests of the schema share: engines and names for fresh databases, init, and what must hold after it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, NullPool, create_engine, event, inspect, make_url, text

from postroom.store.schema import migrations
from postroom.store.schema.guards import checks, trigger_names, triggers
from postroom.store.schema.migrations import upgrade
from postroom.store.schema.tables import metadata
from postroom.store.schema.versions import COMPATIBLE_FROM, check, current_version, listed_versions
from postroom.store.sql.names import Names

if TYPE_CHECKING:
    from collections.abc import Iterator

SYNC = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
ASYNC = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


def with_driver(url: str, drivers: dict[str, str]) -> URL:
    parsed = make_url(url)
    return parsed.set(drivername=drivers[parsed.get_backend_name()])


def names_for(url: str, schema: str | None = None, prefix: str | None = None) -> Names:
    return Names.of(make_url(url).get_backend_name(), schema, prefix)


@contextmanager
def engine_for(url: str, **options: Any) -> Iterator[Engine]:
    engine = create_engine(with_driver(url, SYNC), poolclass=NullPool, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def init(engine: Engine, names: Names) -> tuple[int | None, int]:
    with engine.connect() as connection:
        return upgrade(connection, names)


def checked(engine: Engine, names: Names) -> None:
    with engine.connect() as connection:
        check(connection, names)


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def assert_complete(engine: Engine, names: Names) -> None:
    checked(engine, names)
    with engine.connect() as connection:
        assert current_version(connection, names) == migrations.LATEST
        inspector = inspect(connection)
        for table in metadata(names).tables.values():
            there = {index["name"] for index in inspector.get_indexes(table.name, schema=names.schema)}
            assert {index.name for index in table.indexes} <= there
    assert_guarded(engine, names)
    assert count(engine, names.table("outbox_lane")) == 16
    assert count(engine, names.table("outbox_status")) == 0
    assert listed(engine, names) == set(range(COMPATIBLE_FROM, migrations.LATEST + 1))


def listed(engine: Engine, names: Names) -> frozenset[int]:
    with engine.connect() as connection:
        return listed_versions(connection, names)


TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger",
}
CATALOGUE = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master ORDER BY name",
    # Whatever changes a table, a check or a function writes its row anew.
    "postgresql": """
        SELECT oid::text, xmin::text FROM pg_class WHERE oid >= 16384 UNION ALL
        SELECT oid::text, xmin::text FROM pg_constraint WHERE oid >= 16384 UNION ALL
        SELECT oid::text, xmin::text FROM pg_trigger WHERE oid >= 16384 UNION ALL
        SELECT oid::text, xmin::text FROM pg_proc WHERE oid >= 16384 UNION ALL
        SELECT oid::text, xmin::text FROM pg_namespace WHERE oid >= 16384 ORDER BY 1
        """,
    "mysql": "SELECT table_name, create_time FROM information_schema.tables WHERE table_schema = database()",
}


def catalogue(engine: Engine, names: Names) -> list[tuple[object, ...]]:
    """What the database says of its tables and all that belongs to them: it differs after any change of them."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql(CATALOGUE[names.dialect]).all()
    return [*map(tuple, found), *((version,) for version in sorted(listed(engine, names)))]


def list_only(names: Names, *versions: int) -> list[str]:
    """The statements after which the tables claim to be those of these versions."""
    table = names.table("schema_version")
    return [f"DELETE FROM {table}", *(f"INSERT INTO {table} (version) VALUES ({version})" for version in versions)]


def assert_guarded(engine: Engine, names: Names) -> None:
    for table in ("outbox", "outbox_delivery"):
        assert checks_of(engine, names, table) >= set(checks(names, table))
    if names.dialect != "mysql":
        with engine.connect() as connection:
            found = connection.scalars(text(TRIGGERS[names.dialect])).all()
        assert {names.bare("outbox_check"), names.bare("outbox_delivery_check")} <= trigger_names(names) <= set(found)


def without_guards(url: str) -> None:
    """Make the tables, and take from them what refuses bad rows: as a version made them that had none of it."""
    names = names_for(url)
    with engine_for(url) as engine:
        init(engine, names)
        take_guards(engine, names)


def take_guards(engine: Engine, names: Names) -> None:
    """Let the tables take anything."""
    execute(engine, *(statement for statement in triggers(names) if statement.startswith("DROP")))
    for table in ("outbox", "outbox_delivery"):
        drop = f"ALTER TABLE {names.table(table)} DROP CONSTRAINT"
        execute(engine, *(f"{drop} {names.quoted(check)}" for check in checks_of(engine, names, table)))


def checks_of(engine: Engine, names: Names, table: str) -> set[str]:
    found = inspect(engine).get_check_constraints(names.bare(table), schema=names.schema)
    return {str(check["name"]) for check in found}


def cut_off(engine: Engine, names: Names, after: int) -> bool:
    """Run init until so many statements that change something are done; False if it came to its end before that."""
    done = itertools.count()

    @event.listens_for(engine, "before_cursor_execute")
    def fail(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        if not statement.lstrip().startswith(("CREATE", "INSERT", "ALTER", "DROP", "DELETE")):
            return
        if next(done) == after:
            raise KeyboardInterrupt

    try:
        init(engine, names)
    except KeyboardInterrupt:
        return True
    finally:
        event.remove(engine, "before_cursor_execute", fail)
    return False
