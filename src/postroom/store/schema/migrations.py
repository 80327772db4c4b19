"""Create the tables, and upgrade them.

A new database gets the newest tables at once. An older one goes through the steps in `UPGRADES`, forward only.
The tables list every version whose code works with them (`postroom.rules.schema_version`).
Tables that Alembic made are adopted: checked, completed with what MetaData cannot hold, and given a version.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, assert_never

from sqlalchemy import Connection, MetaData, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable

from postroom.errors import SchemaError, SchemaNewer
from postroom.rules.ordering import LANES
from postroom.rules.schema_version import BEGUN, Fit, fit
from postroom.store.schema.ddl import completing_statements, indexes_of, schema_statements, version_rows
from postroom.store.schema.locking import lock_hot_tables
from postroom.store.schema.tables import metadata
from postroom.store.schema.upgrades import (
    add_sagas,
    add_stream,
    add_twophase,
    add_watching,
    guard_tables,
    lighten_guards,
)
from postroom.store.schema.versions import COMPATIBLE_FROM, VERSION, check, listed_versions, newer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.names import Names

    Upgrade = Callable[[Connection, Names], None]

LATEST = VERSION
"""The version that this Postroom works with."""

UPGRADES: list[Upgrade] = [guard_tables, add_sagas, add_twophase, add_watching, add_stream, lighten_guards]
"""``UPGRADES[n - 1]`` turns version n into n + 1. A step must be safe to run again after it was interrupted, because
MySQL commits at every DDL statement. The view and the function are replaced afterwards; no step need do that."""

_LOCK_SECONDS = 60


def upgrade(connection: Connection, names: Names) -> tuple[int | None, int]:
    """Create the tables, or bring them to the newest version; returns the version before (None: new) and now.

    The connection must not be in a transaction. When this returns, all is committed; when it raises, nothing is (on
    MySQL: what was done stays, and the next run continues from there). Several processes may do this at once: one does
    the work, the others wait and find it done. Newer tables that this Postroom works with are left as they are. Raises
    `SchemaNewer` if it does not work with them, and `SchemaError` if there are tables without a version and some are
    missing.
    """
    with _EXCLUSIVELY[names.dialect](connection):
        return _upgrade(connection, names)


def repair(connection: Connection, names: Names) -> None:
    """Make view, function, triggers, storage parameters and lanes anew, on tables of the newest version.

    The connection must not be in a transaction. Like `upgrade`, in one transaction where the database has it. Raises
    `SchemaError` if the tables are missing or of another version.
    """
    with _EXCLUSIVELY[names.dialect](connection):
        check(connection, names)
        lock_hot_tables(connection, names, _LOCK_SECONDS)
        table = names.table("outbox_lane")
        queues = [queue for [queue] in connection.execute(text(f"SELECT DISTINCT queue FROM {table}"))]
        for statement in completing_statements(names):
            connection.exec_driver_sql(statement)
        for queue in queues:
            there = connection.execute(text(f"SELECT lane FROM {table} WHERE queue = :queue"), {"queue": queue})
            for lane in sorted({*range(LANES)} - {number for [number] in there}):
                connection.execute(
                    text(f"INSERT INTO {table} (queue, lane) VALUES (:queue, :lane)"), {"queue": queue, "lane": lane}
                )


def upgrade_within(connection: Connection, names: Names) -> tuple[int | None, int]:
    """`upgrade` in the connection's open transaction, which the caller commits, as in Alembic's migrations.

    On MySQL every DDL statement commits by itself. SQLite's journal mode stays: a transaction cannot change it.
    """
    with _WITHIN[names.dialect](connection):
        return _upgrade(connection, names)


def _upgrade(connection: Connection, names: Names) -> tuple[int | None, int]:
    listed = listed_versions(connection, names)
    before = max(listed, default=None)
    match fit(listed, LATEST):
        case Fit.FITS:
            if before == LATEST and min(listed) < COMPATIBLE_FROM:  # MySQL: the last upgrade was interrupted here
                connection.exec_driver_sql(_unlist(names))
            return before, before or LATEST
        case Fit.NEWER:
            raise SchemaNewer(newer(max(listed), names))
        case Fit.UNFINISHED:
            lock_hot_tables(connection, names, _LOCK_SECONDS)
            _create(connection, names, interrupted=before == BEGUN)
        case Fit.OUTDATED:
            lock_hot_tables(connection, names, _LOCK_SECONDS)
            _run_steps(connection, names, max(listed))
        case never:
            assert_never(never)
    for statement in completing_statements(names):
        connection.exec_driver_sql(statement)
    connection.exec_driver_sql(_unlist(names))
    return before or None, LATEST


def _unlist(names: Names) -> str:
    """The statement that takes the versions off the list whose code does not work with these tables."""
    return f"DELETE FROM {names.table('schema_version')} WHERE version < {COMPATIBLE_FROM}"


def _run_steps(connection: Connection, names: Names, before: int) -> None:
    """Record each version but the last, which is recorded once view and function have been replaced too."""
    for version in range(before, LATEST):
        UPGRADES[version - 1](connection, names)
        if version + 1 < LATEST:
            connection.exec_driver_sql(version_rows(names, version + 1))


def _create(connection: Connection, names: Names, *, interrupted: bool) -> None:
    tables = metadata(names)
    there = set(inspect(connection).get_table_names(schema=names.schema))
    if not interrupted:
        _refuse_incomplete(connection, names, tables, there)
    if names.schema is not None and not inspect(connection).has_schema(names.schema):
        # IF NOT EXISTS would need the privilege to create schemas even if there is nothing to do.
        for statement in schema_statements(names):
            connection.exec_driver_sql(statement)
    for table in tables.tables.values():
        is_there = table.name in there
        if not is_there:
            connection.execute(CreateTable(table))
        for index in indexes_of(table):
            index.create(connection, checkfirst=is_there)  # looking for an index takes longer than creating it
        if table.name == names.bare("schema_version"):  # the first one
            connection.exec_driver_sql(version_rows(names, BEGUN))


def _refuse_incomplete(connection: Connection, names: Names, tables: MetaData, there: set[str]) -> None:
    """Refuse tables without a version if some are missing: they are not ours, or a migration was interrupted."""
    if not there & ({table.name for table in tables.tables.values()} - {names.bare("schema_version")}):
        return
    inspector = inspect(connection)
    missing: list[str] = []
    for table in tables.tables.values():
        if table.name not in there:
            missing.append(f"table {table.fullname}")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name, schema=names.schema)}
        missing += [f"column {table.fullname}.{column.name}" for column in table.columns if column.name not in columns]
    if missing:
        raise SchemaError(
            f"tables with Postroom's names are in this database, but not all of them: {', '.join(missing)} missing. "
            "If they are Postroom's, complete them with the tool that made them; if not, set another schema or prefix"
        )


@contextmanager
def _exclusively_on_postgresql(connection: Connection) -> Iterator[None]:
    connection.execution_options(isolation_level="READ COMMITTED")  # see what others committed while we waited
    with connection.begin(), _alone_on_postgresql(connection):
        yield


@contextmanager
def _alone_on_postgresql(connection: Connection) -> Iterator[None]:
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('postroom init', 0))"))
    yield


@contextmanager
def _exclusively_on_mysql(connection: Connection) -> Iterator[None]:
    """The lock belongs to the session, so it survives the commits of DDL statements; it is released after the last."""
    connection.execution_options(isolation_level="READ COMMITTED")
    with connection.begin():
        _lock_on_mysql(connection)
    try:
        with connection.begin():
            yield
    finally:
        with connection.begin():
            connection.execute(text(_RELEASE))


@contextmanager
def _alone_on_mysql(connection: Connection) -> Iterator[None]:
    _lock_on_mysql(connection)
    try:
        yield
    finally:
        connection.execute(text(_RELEASE))


def _lock_on_mysql(connection: Connection) -> None:
    if connection.scalar(text(f"SELECT get_lock({_LOCK_NAME}, {_LOCK_SECONDS})")) != 1:
        raise SchemaError(f"another process has been upgrading the tables for {_LOCK_SECONDS} seconds: try again later")


_LOCK_NAME = "concat('postroom init ', md5(database()))"
_RELEASE = f"SELECT release_lock({_LOCK_NAME})"


@contextmanager
def _exclusively_on_sqlite(connection: Connection) -> Iterator[None]:
    """A transaction that has the write lock from its start. By default, Python's driver begins none for DDL."""
    with connection.begin():
        if connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]  # it is checked out
            connection.exec_driver_sql("ROLLBACK")  # an empty one, begun by the driver or an event
        _use_wal(connection)
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield


@contextmanager
def _alone_on_sqlite(connection: Connection) -> Iterator[None]:
    """SQLAlchemy has begun a transaction, but the driver may not have."""
    if not connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]  # it is checked out
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    yield


def _use_wal(connection: Connection, tries: int = 10) -> None:
    """Use a write-ahead log, so that readers and the writer do not block each other. In-memory databases have none."""
    try:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL").all()
    except OperationalError:
        if tries == 1:
            raise
        # SQLite does not wait while another process switches modes, but it does wait for the write lock.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("ROLLBACK")
        _use_wal(connection, tries - 1)


_EXCLUSIVELY: dict[str, Callable[[Connection], AbstractContextManager[None]]] = {
    "postgresql": _exclusively_on_postgresql,
    "mysql": _exclusively_on_mysql,
    "sqlite": _exclusively_on_sqlite,
}
_WITHIN: dict[str, Callable[[Connection], AbstractContextManager[None]]] = {
    "postgresql": _alone_on_postgresql,
    "mysql": _alone_on_mysql,
    "sqlite": _alone_on_sqlite,
}
