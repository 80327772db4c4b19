"""The tables of sagas: the instance, the record of its steps, and events that no step has taken yet.

All three belong to the message that starts the instance, by its position, and are removed with it. What runs now, waits
or is parked is in that message's delivery; so lists by state start there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Column, Index, Integer, MetaData, SmallInteger, String, Table, text

from postroom.rules.saga_plan import SagaOutcome
from postroom.store.schema.columns import Types, moment, number, words
from postroom.store.schema.guards import constraints

if TYPE_CHECKING:
    from postroom.store.sql.names import Names


def saga(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each instance, written at its start, when it turns back, and at its end."""
    return Table(
        names.bare("saga"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("name", types.queue, nullable=False),
        Column("id", String(255), nullable=False),
        number("direction", SmallInteger),  # rules.saga_plan.Direction
        number("outcome", SmallInteger),  # rules.saga_plan.SagaOutcome
        Column("deadline", types.moment),
        moment("started", types, types.now),
        Column("ended", types.moment),
        words("failed_step", 64),  # empty: it was aborted, or its deadline passed between steps
        words("error_code", 64),
        words("error_message", 512),
        words("aborted_by", 255),
        _compensated(names),
        *constraints(names, "saga"),
    )


def saga_step(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each step and direction, which is also the barrier: a step that has one is not run again."""
    return Table(
        names.bare("saga_step"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("direction", SmallInteger, primary_key=True, autoincrement=False),
        Column("step", types.queue, primary_key=True),
        Column("outcome", SmallInteger, nullable=False),  # rules.saga_plan.StepOutcome
        number("number", SmallInteger),  # how many rows of the instance came before it: clocks may go back
        number("attempts", Integer),
        words("worker", 255),
        moment("started", types, types.now),
        moment("finished", types, types.now),  # while it waits, as started
        Column("result", types.bytes),
        Column("data", types.bytes),  # the saga's data after it, if it changed them
        words("error_code", 64),
        words("error_message", 512),
        *constraints(names, "saga_step"),
        sqlite_with_rowid=False,
    )


def saga_event(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each event until a step takes it. Its id is that of the signal's message."""
    return Table(
        names.bare("saga_event"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("message_id", types.uuid, primary_key=True),
        Column("name", types.queue, nullable=False),
        Column("payload", types.bytes),
        moment("received_at", types, types.now),
        sqlite_with_rowid=False,
    )


def _compensated(names: Names) -> Index:
    """Those that were undone, which are few. MySQL has no partial indexes."""
    name = names.bare("saga_compensated")
    if names.dialect == "mysql":
        return Index(name, "outcome", "position")
    undone = text(f"outcome = {int(SagaOutcome.COMPENSATED)}")
    return Index(name, "position", postgresql_where=undone, sqlite_where=undone)
