"""Empty the tables, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.schema.tables import metadata

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

_KEPT = {"schema_version", "outbox_lane", "outbox_stream"}
"""What is part of the tables themselves."""


def empty_statements(names: Names) -> list[str]:
    """The statements that remove all rows, what refers to others first."""
    tables = [table.name.removeprefix(names.prefix) for table in reversed(metadata(names).sorted_tables)]
    return [f"DELETE FROM {names.table(table)}" for table in tables if table not in _KEPT]
