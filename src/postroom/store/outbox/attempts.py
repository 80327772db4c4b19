"""Attempts that failed, as they are kept for the timeline of a message. One that succeeded leaves its receipt alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.store.sql.operations import Operations
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroom.store.outbox.leases import Claimed

MOST_SHOWN = 200
"""Attempts of a message that are shown, the newest."""
COLUMNS = "position, at, attempt, worker, error_code, error_message"


class FailedAttempt(NamedTuple):
    """A row of `outbox_attempt`."""

    at: datetime | None
    attempt: int
    worker: str
    error_code: str
    error_message: str


def worker_of(sql: Operations, delivery: str = "d") -> str:
    """Who holds a delivery, by itself or by its lane."""
    holder = f"SELECT l.owner FROM {sql.lane} l WHERE l.queue = {delivery}.queue AND l.lane = {delivery}.lane"
    return f"CASE WHEN {delivery}.owner <> '' THEN {delivery}.owner ELSE coalesce(({holder}), '') END"


def record_failed(sql: Operations, claimed: Sequence[Claimed], code: str, message: str) -> Query:
    """The statement that records that these failed alike, before they are settled."""
    source, these = sql.only_deliveries(claimed)
    rows = (
        f"SELECT d.position, {sql.now}, d.attempts + 1, {worker_of(sql)}, :code, :message FROM {source} "
        f"WHERE {ready('d')} AND d.queue = :queue AND {these}"
    )
    return Query(
        sql.dialect.insert_selected(sql.tables["attempt"], COLUMNS, rows, "attempt"),
        {"queue": sql.queue, "code": code, "message": message},
    )


class Attempts(Operations):
    """Reads them."""

    def of_message(self, position: int) -> Steps[list[FailedAttempt]]:
        """The failed attempts of a message, oldest first."""
        found = yield Query(
            f"SELECT {self.dialect.readable('at')}, attempt, worker, error_code, error_message "
            f"FROM {self.tables['attempt']} WHERE position = :position ORDER BY at DESC LIMIT {MOST_SHOWN}",
            {"position": position},
        )
        return [
            FailedAttempt(self.dialect.read_moment(at), int(attempt), worker, code, message)
            for at, attempt, worker, code, message in reversed(found.rows)
        ]
