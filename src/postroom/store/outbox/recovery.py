"""Recovery: end leases of unknown outcome, and find what a replaced server no longer has."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from postroom.rules.ordering import NO_LANE
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.operations import Operations


class Recovery:
    def __init__(self, sql: Operations) -> None:
        self._sql = sql

    def forget(self, token: int) -> Steps[None]:
        """End every lease of a claim whose outcome is unknown, because the connection was lost as it committed."""
        sql = self._sql
        params = {"queue": sql.queue, "token": token, "no_lane": NO_LANE}
        released = f"token = 0, owner = '', leased_until = {sql.dialect.never}"
        yield from sql.statement(
            f"UPDATE {sql.delivery} SET {released}, claims = claims - 1 "
            f"WHERE {ready()} AND queue = :queue AND lane = :no_lane AND token = :token",
            params,
        )
        yield from sql.statement(
            f"UPDATE {sql.lane} SET {released}, read_to = 0 WHERE queue = :queue AND token = :token", params
        )

    def strangers(self, claimed: Sequence[Claimed]) -> Steps[list[Claimed]]:
        """Those whose position holds another message in the database, or none."""
        ids: dict[int, str] = {}
        for some in chunks(claimed):
            positions = whole_numbers([one.position for one in some])
            found = yield Query(f"SELECT position, id FROM {self._sql.outbox} WHERE position IN ({positions})")
            ids.update({position: str(identifier) for position, identifier in found.rows})
        return [one for one in claimed if not is_id(ids.get(one.position), one.message.id)]


def is_id(stored: str | None, identifier: UUID) -> bool:
    """Whether the stored text is this id: a producer in plain SQL may have spelled it differently."""
    try:
        return stored is not None and UUID(stored) == identifier
    except ValueError:
        return False
