"""The lease protocol of one queue, put together: which part does what, and how each database does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits
from postroom.rules.ordering import NO_LANE, Order
from postroom.store.outbox.claims import RowClaims
from postroom.store.outbox.deduplication import Deduplication
from postroom.store.outbox.held import HeldLeases
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.mysql import MySQLLanes, MySQLSelections, MySQLSettlementWriter
from postroom.store.outbox.postgresql.claims import PostgreSQLRowClaims, PostgreSQLSelections
from postroom.store.outbox.postgresql.lanes import PostgreSQLLanes
from postroom.store.outbox.postgresql.renewals import PostgreSQLRenewals
from postroom.store.outbox.postgresql.settlements import PostgreSQLSettlementWriter
from postroom.store.outbox.receipts import CountingSettlementWriter
from postroom.store.outbox.recovery import Recovery
from postroom.store.outbox.renewals import Renewals
from postroom.store.outbox.screening import Screening
from postroom.store.outbox.selections import Selections
from postroom.store.sql.operations import DEFAULT_QUEUE, Operations
from postroom.store.sql.states import comes_due, ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.store.sql.names import Names

A_DAY = 24 * 3600.0


class _Parts(NamedTuple):
    """What differs between databases. By default every part does its work in short transactions of portable SQL."""

    selections: type[Selections] = Selections
    rows: type[RowClaims] = RowClaims
    lanes: type[Lanes] = Lanes
    settlements: type[SettlementWriter] = CountingSettlementWriter
    renewals: type[Renewals] = Renewals


_PARTS = {
    "sqlite": _Parts(),
    "mysql": _Parts(MySQLSelections, lanes=MySQLLanes, settlements=MySQLSettlementWriter),  # and MariaDB
    "postgresql": _Parts(
        PostgreSQLSelections, PostgreSQLRowClaims, PostgreSQLLanes, PostgreSQLSettlementWriter, PostgreSQLRenewals
    ),
}


class QueueStore:
    """Deliveries of one queue: claimed as rows or in lanes, kept by renewals, ended by settlements."""

    def __init__(
        self,
        names: Names,
        queue: str = DEFAULT_QUEUE,
        order: Order = Order.HOLD,
        limits: ClaimLimits = DEFAULT_CLAIM_LIMITS,
        ledger_keep: float = A_DAY,
    ) -> None:
        """`ledger_keep`: how many seconds the ledger keeps the outcomes of messages that belong to its entries."""
        parts = _PARTS[names.dialect]
        self.names = names
        self.queue = queue
        self.sql = Operations(names, queue)
        self._selections = parts.selections(self.sql, order)
        held = HeldLeases(self.sql)
        self.settlements = parts.settlements(self.sql, held, ledger_keep)
        screening = Screening(self.settlements, limits)
        self.rows = parts.rows(self.sql, self._selections, screening)
        self.lanes = parts.lanes(self.sql, self._selections, held, screening)
        self.renewals = parts.renewals(self.sql, held)
        self.deduplication = Deduplication(self.sql, self.settlements)
        self.recovery = Recovery(self.sql)

    def anything_to_send(self) -> Steps[bool]:
        """Whether anything is left that is due and free, or in a lane, held by anyone, and not blocked."""
        sql = self.sql
        for question in (
            f"{ready()} AND lane = {NO_LANE} AND leased_until <= {sql.now}",
            f"{comes_due()} AND due <= {sql.now}",
            f"{ready()} AND lane > {NO_LANE} AND {self._selections.unblocked()}",
        ):
            found = yield Query(
                f"SELECT 1 FROM {sql.delivery} d WHERE queue = :queue AND {question} LIMIT 1", {"queue": sql.queue}
            )
            if found.rows:
                return True
        return False
