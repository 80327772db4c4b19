"""One queue's lease protocol: which database gets which parts, and that they share what they must."""

from __future__ import annotations

import pytest

from postroom.store.outbox.claims import RowClaims
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.mysql import MySQLLanes, MySQLSelections, MySQLSettlementWriter
from postroom.store.outbox.postgresql.claims import PostgreSQLRowClaims, PostgreSQLSelections
from postroom.store.outbox.postgresql.lanes import PostgreSQLLanes
from postroom.store.outbox.postgresql.renewals import PostgreSQLRenewals
from postroom.store.outbox.postgresql.settlements import PostgreSQLSettlementWriter
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.receipts import CountingSettlementWriter
from postroom.store.outbox.renewals import Renewals
from postroom.store.outbox.selections import Selections
from postroom.store.sql.names import Names

PARTS: dict[str, tuple[type, ...]] = {
    "sqlite": (Selections, RowClaims, Lanes, CountingSettlementWriter, Renewals),
    "mysql": (MySQLSelections, RowClaims, MySQLLanes, MySQLSettlementWriter, Renewals),
    "postgresql": (
        PostgreSQLSelections,
        PostgreSQLRowClaims,
        PostgreSQLLanes,
        PostgreSQLSettlementWriter,
        PostgreSQLRenewals,
    ),
}


@pytest.mark.parametrize("database", PARTS)
def test_each_database_has_its_own_parts(database: str) -> None:
    store = QueueStore(Names.of(database))
    parts = (store.rows.selections, store.rows, store.lanes, store.settlements, store.renewals)
    assert tuple(map(type, parts)) == PARTS[database]


@pytest.mark.parametrize("database", PARTS)
def test_all_parts_work_on_the_same_queue_by_the_same_clock(database: str) -> None:
    store = QueueStore(Names.of(database), "payments")
    assert store.queue == store.sql.queue == "payments"
    assert {id(part.sql) for part in (store.rows, store.lanes, store.settlements, store.renewals)} == {id(store.sql)}
    assert store.rows.selections is store.lanes.selections
