"""What operators do to the rows of a saga: lock, resume, put a step on record as skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import PostroomError
from postroom.rules.failures import cut
from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.naming import SAGA_QUEUE
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import StepOutcome
from postroom.store.admin.audit import ACTOR_LENGTH
from postroom.store.admin.saga_lookup import SagaDelivery, SagaLookup
from postroom.store.sql.operations import Place
from postroom.store.sql.states import becomes, dead, in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_acts import Skip

MOST_LOOKS = 100


class SagaActs(SagaLookup):
    """To be called within transactions."""

    def lock(self, name: str, position: int) -> Steps[SagaDelivery | None]:
        """Lock its delivery, in whichever state, so that no worker can write; None if it has ended.

        What is read in later statements is then what is.
        """
        queue = f"{SAGA_QUEUE}{name}"
        for _ in range(MOST_LOOKS):
            seen = yield from self.delivery_of(queue, position)
            if seen is None:
                return None
            locked = yield Query(
                f"SELECT 1 FROM {self.delivery_by_key} WHERE {in_state(seen.stored)} AND queue = :queue "
                f"AND lane = {NO_LANE} AND position = :position{self.dialect.for_update}",
                {"queue": queue, "position": position},
            )
            if locked.rows:
                return (yield from self.delivery_of(queue, position))
        raise PostroomError(f"saga {name} at position {position} changes its state too often to be locked: try again")

    def lock_parked(self, name: str, positions: Sequence[int]) -> Steps[list[int]]:
        """Lock the deliveries of those that are parked; returns which."""
        source, these = self.only_deliveries([Place(NO_LANE, position) for position in positions])
        found = yield Query(
            f"SELECT d.position FROM {source} WHERE {dead('d')} AND d.queue = :queue AND {these} "
            f"ORDER BY d.position{self.dialect.for_update_of('d')}",
            {"queue": f"{SAGA_QUEUE}{name}"},
        )
        return [position for [position] in found.rows]

    def resume(self, name: str, stored: Stored, positions: Sequence[int]) -> Steps[None]:
        """Make those due at once whose delivery is in this state, with all their attempts before them."""
        yield Query(
            f"UPDATE {self.delivery_by_key} SET {becomes(Transition.REQUEUE)}, due = {self.dialect.never}, "
            f"attempts = 0, claims = 0, error_code = '', error_message = '' WHERE {in_state(stored)} "
            f"AND queue = :queue AND {self.places([Place(NO_LANE, position) for position in positions])}",
            {"queue": f"{SAGA_QUEUE}{name}"},
        )

    def skip(self, position: int, skip: Skip, actor: str) -> Steps[None]:
        """Put a step on record as skipped, by whom. One that waited does so no longer."""
        params = {
            "position": position,
            "direction": int(skip.direction),
            "step": skip.step,
            "worker": cut(actor, ACTOR_LENGTH),
        }
        table = self.tables["saga_step"]
        this = "position = :position AND direction = :direction AND step = :step"
        there = yield Query(f"SELECT 1 FROM {table} WHERE {this}", params)
        if there.rows:
            yield Query(
                f"UPDATE {table} SET outcome = {int(StepOutcome.SKIPPED)}, worker = :worker, finished = {self.now} "
                f"WHERE {this}",
                params,
            )
            return
        before = yield Query(f"SELECT count(*) FROM {table} WHERE position = :position", params)
        yield Query(
            f"INSERT INTO {table} (position, direction, step, outcome, number, attempts, worker) "
            f"VALUES (:position, :direction, :step, {int(StepOutcome.SKIPPED)}, :number, 0, :worker)",
            {**params, "number": before.rows[0][0]},
        )
