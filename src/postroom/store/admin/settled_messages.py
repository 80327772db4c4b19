"""Remove messages that were settled long ago, with their receipts, and all that belongs to sagas that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.saga_plan import SagaOutcome
from postroom.store.admin.ages import Ages
from postroom.store.admin.partitions import LEFT_TO_PARTITIONS, Partitions
from postroom.store.admin.sweeps import Old, Sweep
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.store.sql.names import Names

_OPEN = f"outcome = {int(SagaOutcome.OPEN)}"


class SettledMessages(Sweep):
    """A sweep through the receipts, as far as messages are old.

    The search for the last position may stop short of some, which the next cleanup finds. Where the outbox has
    partitions, what a partition is about to take along is left to it for a while.
    """

    def __init__(self, names: Names, seconds: float) -> None:
        params = {"ago": -float(seconds)}
        super().__init__(names, Old("receipt", ("position",), 0, "", params))
        self.old = self.old._replace(condition=f"sent_at <= {self.dialect.later(':ago')}")
        self._seconds = seconds
        self._until: int | None = None

    def page(self, rows: int) -> Steps[int]:
        if self._until is None:
            parts = (yield from Partitions(self.names).existing()) if self.dialect.name == "postgresql" else []
            self._until = yield from Ages(self.names).last_settled(self._seconds + (LEFT_TO_PARTITIONS if parts else 0))
        return (yield from super().page(rows))

    def _page_up_to(self, last: Row | None) -> tuple[str, dict[str, Any]]:
        where, params = super()._page_up_to(last)
        return f"position <= :until AND {where}", {**params, "until": self._until}

    def _remove(self, page: str, params: Mapping[str, Any], rows: int) -> Steps[int]:
        if self.dialect.name == "postgresql":
            return (yield from self._remove_at_once(page, {**params, "rows": rows}))
        return (yield from self.transaction(self._remove_in_turn, page, params))

    def _remove_at_once(self, page: str, params: Mapping[str, Any]) -> Steps[int]:
        """In one statement. A saga that is open stays whole, whatever a receipt says."""
        saga, step, event = (self.tables[name] for name in ("saga", "saga_step", "saga_event"))
        [[count]] = yield from self.statement(
            f"""
            WITH old AS MATERIALIZED (
                SELECT r.position FROM {self.receipt} r WHERE {page} AND {self.old.condition}
                    AND NOT EXISTS (SELECT 1 FROM {saga} s WHERE s.position = r.position AND s.{_OPEN})
                ORDER BY r.position LIMIT :rows{self.dialect.for_update_of("r")} SKIP LOCKED
            ), sagas AS (
                DELETE FROM {saga} WHERE {_among("old")} RETURNING position
            ), steps AS (
                DELETE FROM {step} WHERE {_among("sagas")}
            ), events AS (
                DELETE FROM {event} WHERE {_among("sagas")}
            ), attempts AS (
                DELETE FROM {self.tables["attempt"]} WHERE {_among("old")}
            ), messages AS (
                DELETE FROM {self.outbox} WHERE {_among("old")}
            ), gone AS (
                DELETE FROM {self.receipt} WHERE {_among("old")} RETURNING 1
            )
            SELECT count(*) FROM gone""",
            params,
        )
        return int(count)

    def _remove_in_turn(self, page: str, params: Mapping[str, Any]) -> Steps[int]:
        found = yield Query(
            f"SELECT position FROM {self.receipt} WHERE {page} AND {self.old.condition}{self.dialect.skip_locked}",
            params,
        )
        settled = [position for [position] in found.rows]
        if not settled:
            return 0
        gone = sorted({*settled} - (yield from self._remove_sagas(settled)))
        for table in (self.tables["attempt"], self.outbox, self.receipt):
            yield Query(f"DELETE FROM {table} WHERE position IN ({whole_numbers(gone)})")
        return len(gone)

    def _remove_sagas(self, positions: Sequence[int]) -> Steps[set[int]]:
        """Remove all of the sagas that ended; returns those that are open, which stay whole whatever a receipt says."""
        found = yield Query(
            f"SELECT position, outcome FROM {self.tables['saga']} WHERE position IN ({whole_numbers(positions)})"
        )
        sagas = {position: SagaOutcome(outcome) for position, outcome in found.rows}
        ended = whole_numbers([position for position, outcome in sagas.items() if outcome is not SagaOutcome.OPEN])
        if sagas:
            for table in ("saga_event", "saga_step", "saga"):
                yield Query(f"DELETE FROM {self.tables[table]} WHERE position IN ({ended})")
        return {position for position, outcome in sagas.items() if outcome is SagaOutcome.OPEN}


def _among(found: str) -> str:
    """An array, unlike a join, is looked up by primary key whatever the statistics say."""
    return f"position = ANY (ARRAY(SELECT position FROM {found}))"
