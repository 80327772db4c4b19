"""A value that changes when what operators see may have changed: for pages that are loaded again only then."""

from __future__ import annotations

from hashlib import sha256

from postroom.rules.lifecycle import Stored
from postroom.store.outbox.flow import MINUTE_MS
from postroom.store.outbox.workers import ALIVE_SECONDS
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import in_state
from postroom.store.sql.steps import Query, Steps

COUNTED = 1_000
"""Deliveries of each state that are counted: with more than that, other figures tell."""
AGES_MS = 30_000
"""Ages that are shown change by themselves: so often is a page loaded again, if nothing else happens."""


class ChangeToken(Operations):
    """Reads the ends of indexes, in one statement."""

    def read(self) -> Steps[str]:
        """The value now. It tells nothing but that it differs from another one."""
        table = self.tables
        alive = f"SELECT {{}} FROM {table['worker']} WHERE seen_at > {self.dialect.later(':silent')}"
        unsettled = f"SELECT id FROM {table['twophase']} WHERE settled_at IS NULL ORDER BY id LIMIT {COUNTED}"
        figures = [
            f"SELECT max(position) FROM {self.outbox}",
            f"SELECT max(position) FROM {table['saga']}",
            f"SELECT max(id) FROM {table['audit']}",
            f"SELECT sum(messages) FROM {table['flow']} WHERE minute >= :minute",
            alive.format("count(*)"),
            alive.format("sum(CASE WHEN broker_down <> '' THEN 1 ELSE 0 END)"),
            f"SELECT count(*) FROM ({unsettled}) t",
            *map(self._deliveries, Stored),
        ]
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        now = int(found.rows[0][0])
        columns = ", ".join(f"({figure})" for figure in figures)
        found = yield Query(f"SELECT {columns}", {"silent": -ALIVE_SECONDS, "minute": now // MINUTE_MS - 2})
        told = [now // AGES_MS, *(None if figure is None else int(figure) for figure in found.rows[0])]
        return sha256(repr(told).encode()).hexdigest()[:16]

    def _deliveries(self, state: Stored) -> str:
        return (
            f"SELECT count(*) FROM (SELECT position FROM {self.delivery}{self.dialect.by_primary_key} "
            f"WHERE {in_state(state)} ORDER BY state, queue, lane, position LIMIT {COUNTED}) s{int(state)}"
        )
