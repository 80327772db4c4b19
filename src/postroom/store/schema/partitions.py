"""Partitions on PostgreSQL: outbox and receipts in ranges of positions, so that old ones are truncated, not deleted.

A unique index of a partitioned table must hold the partition key, and an idempotency key has none. So keys have a table
of their own, `outbox_key`, which a trigger fills: for programs nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

from postroom.errors import InvalidIdentifier, SchemaError
from postroom.rules.partitions import LEAST, to_add
from postroom.store.schema.ddl import completing_statements
from postroom.store.schema.partition_ddl import TABLES, partition_statements
from postroom.store.sql.names import MAX_IDENTIFIER
from postroom.store.stream.slots import Slots

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

OLDEST_SERVER = 13
_LONGEST = len("outbox_receipt_p") + len(str(2**63))


def is_partitioned(connection: Connection, names: Names) -> bool:
    """Whether the outbox is partitioned."""
    kind = connection.scalar(
        text("SELECT relkind FROM pg_class WHERE oid = to_regclass(:name)"), {"name": _outbox(names)}
    )
    return kind in {"p", b"p"}


def check_partitions(names: Names) -> None:
    """Raise `SchemaError` or `InvalidIdentifier` where there can be no partitions."""
    if names.dialect != "postgresql":
        raise SchemaError(f"partitions need PostgreSQL, and this is {names.dialect}: leave --partitions out")
    if len(names.prefix) > MAX_IDENTIFIER - _LONGEST:
        raise InvalidIdentifier(
            f"table prefix {names.prefix!r} has {len(names.prefix)} characters: with partitions, at most "
            f"{MAX_IDENTIFIER - _LONGEST} are allowed"
        )


def partition(connection: Connection, names: Names) -> bool:
    """Partition outbox and receipts, with what is in them; returns False if they are. Raises `SchemaError`.

    The tables must exist, and the connection must not be in a transaction. Nobody can use the outbox meanwhile: what is
    there is read once, and becomes the first partition. When it raises, nothing has changed.
    """
    check_partitions(names)
    with connection.begin():
        version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10_000
        if version < OLDEST_SERVER:
            raise SchemaError(f"partitions need PostgreSQL {OLDEST_SERVER} or newer, and this is {version}")
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended('postroom init', 0))")
        if is_partitioned(connection, names):
            return False
        connection.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        connection.exec_driver_sql(f"LOCK TABLE {', '.join(map(names.table, TABLES))} IN ACCESS EXCLUSIVE MODE")
        last = _last_position(connection, names)
        grants = [grant for table in (*TABLES, "outbox_status") for grant in _grants(connection, names, table)]
        for table in TABLES:
            _become_partition(connection, names, table, last + 1)
        statements = [
            *_keys(names),
            *partition_statements(names, None),
            *(one for part in to_add(last, last + 1, LEAST) for one in partition_statements(names, part)),
            *completing_statements(names),
            *grants,
            *_publication(connection, names),
        ]
        for statement in statements:
            connection.exec_driver_sql(statement)
    return True


def _publication(connection: Connection, names: Names) -> list[str]:
    """Statements that have the publication of the stream, if there is one, show the new table instead of the old.

    In the same transaction, no reader can miss a message: what was written before is shown as it was published then.
    """
    slots = Slots(names)
    may = connection.scalar(
        text(
            "SELECT pg_has_role(pubowner, 'USAGE') AND has_database_privilege(current_database(), 'CREATE') "
            "FROM pg_publication WHERE pubname = :name"
        ),
        {"name": slots.publication},
    )
    if may is False:
        raise SchemaError(
            f"the publication {slots.publication} must show the partitioned outbox, and the database's user may not "
            "make it anew: run this as its owner, with CREATE on the database, or go back to the table first with "
            "`postroom cdc off`, and drop the publication"
        )
    return slots.publication_statements() if may else []


def _outbox(names: Names) -> str:
    return names.table("outbox")


def _last_position(connection: Connection, names: Names) -> int:
    outbox = _outbox(names)
    last: int = connection.execute(
        text(
            f"SELECT greatest((SELECT max(position) FROM {outbox}), "
            "pg_sequence_last_value(pg_get_serial_sequence(:name, 'position')::regclass), 0)"
        ),
        {"name": outbox},
    ).scalar_one()
    return last


def _grants(connection: Connection, names: Names, table: str) -> list[str]:
    """Statements that give the new table's roles what the old one's had."""
    name = names.table(table)
    rows = connection.execute(
        text(
            "SELECT quote_ident(pg_get_userbyid(acl.grantee)), acl.privilege_type, NULL "
            "FROM pg_class c, aclexplode(c.relacl) acl "
            "WHERE c.oid = to_regclass(:name) AND acl.grantee NOT IN (0, c.relowner) UNION ALL "
            "SELECT quote_ident(pg_get_userbyid(acl.grantee)), acl.privilege_type, quote_ident(a.attname) "
            "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl) acl "
            "WHERE c.oid = to_regclass(:name) AND acl.grantee NOT IN (0, c.relowner)"
        ),
        {"name": name},
    )
    return [
        f"GRANT {privilege}{'' if column is None else f' ({column})'} ON {name} TO {role}"
        for role, privilege, column in rows
    ]


def _become_partition(connection: Connection, names: Names, table: str, end: int) -> None:
    """Put a partitioned table in the place of this one, which becomes its first partition, or goes if it is empty."""
    parent, child = names.table(table), names.table(f"{table}_p0")
    indexes = connection.execute(
        text(
            "SELECT i.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
            "WHERE x.indrelid = to_regclass(:name)"
        ),
        {"name": parent},
    )
    schema = "" if names.schema is None else f"{names.quoted(names.schema)}."
    statements = [
        f"ALTER INDEX {schema}{names.quoted(index)} RENAME TO {names.quoted(f'{index}_p0')}" for [index] in indexes
    ]
    statements.append(f"ALTER TABLE {parent} RENAME TO {names.quoted(names.bare(f'{table}_p0'))}")
    if table == "outbox":
        statements.append(f"ALTER TABLE {child} ALTER COLUMN position DROP IDENTITY")
        guard = names.quoted(names.bare("outbox_check"))  # the new table's holds for its partitions too
        statements.append(f"DROP TRIGGER IF EXISTS {guard} ON {child}")
    key = names.quoted(names.bare(f"{table}_pkey"))
    statements += [
        f"CREATE TABLE {parent} (LIKE {child} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (position)",
        f"ALTER TABLE {parent} ADD CONSTRAINT {key} PRIMARY KEY (position)",
    ]
    if table == "outbox":
        identity = f"GENERATED BY DEFAULT AS IDENTITY (START WITH {end})"
        statements.append(f"ALTER TABLE {parent} ALTER COLUMN position ADD {identity}")
    else:
        dedup = names.quoted(names.bare("outbox_receipt_dedup"))
        statements.append(f"CREATE INDEX {dedup} ON {parent} (dedup) WHERE dedup IS NOT NULL")
    statements.append(
        f"ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES FROM (MINVALUE) TO ({end})"
        if end > 1
        else f"DROP TABLE {child} CASCADE"  # with the view, which is made anew
    )
    for statement in statements:
        connection.exec_driver_sql(statement)


def _keys(names: Names) -> list[str]:
    """The table of idempotency keys, filled, and the triggers that keep it.

    They run with the rights of the tables' owner: who may add a message need not be able to write keys.
    """
    words = {
        "key": names.table("outbox_key"),
        "outbox": names.table("outbox"),
        "take": names.table("outbox_take_key"),
        "free": names.table("outbox_free_key"),
    }
    return [statement.format(**words) for statement in _KEYS]


# What is put back after a partition was truncated has its key already. For any other message with the same key, nothing
# is inserted, as `ON CONFLICT DO NOTHING` does; nor for an id that is there, lest its key be taken for nothing.
_KEYS = (
    "CREATE TABLE {key} (idempotency_key varchar(255) PRIMARY KEY, position bigint NOT NULL)",
    "CREATE INDEX ON {key} (position)",
    "INSERT INTO {key} SELECT idempotency_key, position FROM {outbox} WHERE idempotency_key IS NOT NULL",
    """\
CREATE FUNCTION {take}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $take$
BEGIN
    IF EXISTS (SELECT 1 FROM {outbox} m WHERE m.id = NEW.id) THEN
        RETURN NULL;
    END IF;
    INSERT INTO {key} AS k (idempotency_key, position) VALUES (NEW.idempotency_key, NEW.position)
    ON CONFLICT (idempotency_key) DO UPDATE SET position = excluded.position WHERE k.position = excluded.position;
    IF FOUND THEN
        RETURN NEW;
    END IF;
    RETURN NULL;
END
$take$""",
    """\
CREATE FUNCTION {free}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $free$
BEGIN
    DELETE FROM {key} WHERE idempotency_key = OLD.idempotency_key AND position = OLD.position;
    RETURN NULL;
END
$free$""",
    """\
CREATE TRIGGER outbox_take_key BEFORE INSERT ON {outbox} FOR EACH ROW
WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION {take}()""",
    """\
CREATE TRIGGER outbox_free_key AFTER DELETE ON {outbox} FOR EACH ROW
WHEN (OLD.idempotency_key IS NOT NULL) EXECUTE FUNCTION {free}()""",
    "REVOKE ALL ON FUNCTION {take}(), {free}() FROM PUBLIC",
)
