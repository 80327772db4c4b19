"""The tables of two-phase commits: the log of decisions, and the scope that tells its branches from those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CHAR, BigInteger, Column, Index, MetaData, SmallInteger, Table, text

from postroom.store.schema.columns import Types, moment, words
from postroom.store.schema.guards import constraints

if TYPE_CHECKING:
    from postroom.store.sql.names import Names


def twophase(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each decision. No row and a deadline that has passed: it is aborted, or will be."""
    return Table(
        names.bare("twophase"),
        tables,
        Column("id", types.queue, primary_key=True),
        Column("decision", SmallInteger, nullable=False),  # rules.twophase_plan.Decision
        Column("participants", types.long_text, nullable=False),  # JSON: name → id of its branch
        Column("deadline_ms", BigInteger, nullable=False),  # of this database's clock, as in the id
        moment("decided_at", types, types.now),  # while it is open: when it was written
        Column("settled_at", types.moment),
        words("problem", 512),
        _unsettled(names),
        *constraints(names, "twophase"),
        sqlite_with_rowid=False,
    )


def twophase_scope(tables: MetaData, names: Names, types: Types) -> Table:
    """One row, made at the first use, with what the ids of all branches begin with."""
    return Table(
        names.bare("twophase_scope"),
        tables,
        Column("id", SmallInteger, primary_key=True, autoincrement=False),
        Column("scope", CHAR(8), nullable=False),
        moment("created_at", types, types.now),
    )


def _unsettled(names: Names) -> Index:
    """What recovery still has to do. MySQL has no partial indexes."""
    name = names.bare("twophase_unsettled")
    if names.dialect == "mysql":
        return Index(name, "settled_at", "id")
    unsettled = text("settled_at IS NULL")
    return Index(name, "id", postgresql_where=unsettled, sqlite_where=unsettled)
