"""How a partition is added. Apart from the rest of the schema, so that a cleanup need not load SQLAlchemy's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.rules.partitions import Range
    from postroom.store.sql.names import Names

TABLES = ("outbox", "outbox_receipt")
"""What is partitioned, in the same ranges."""


def partition_statements(names: Names, part: Range | None) -> list[str]:
    """The statements that add a partition for these positions, or, without any, the default one. Producers go on.

    A table that is attached locks the default partition alone; one that is created as a partition would lock all.
    """
    statements: list[str] = []
    values = "DEFAULT" if part is None else f"FOR VALUES FROM ({part.start}) TO ({part.end})"
    for table in TABLES:
        child, parent = names.table(partition_name(table, part)), names.table(table)
        statements.append(f"CREATE TABLE {child} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        if table == "outbox":
            statements.append(f"CREATE UNIQUE INDEX ON {child} (id)")
            statements.append(f"CREATE INDEX ON {child} (idempotency_key) WHERE idempotency_key IS NOT NULL")
        statements.append(f"ALTER TABLE {parent} ATTACH PARTITION {child} {values}")
    return statements


def partition_name(table: str, part: Range | None) -> str:
    """A partition's name, without the prefix."""
    return f"{table}_default" if part is None else f"{table}_p{part.start}"
