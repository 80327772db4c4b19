"""What operators do to the rows of sagas: lock, resume, put a step on record as skipped, copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.failures import cut
from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.naming import SAGA_QUEUE
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_acts import Skip
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.store.admin.audit import ACTOR_LENGTH
from postroom.store.admin.saga_lookup import SagaDelivery, SagaLookup
from postroom.store.saga.tables import SagaTables
from postroom.store.sql.dialect import text, whole_numbers
from postroom.store.sql.operations import Place
from postroom.store.sql.states import becomes, dead, in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_acts import Fork
    from postroom.store.admin.audit import Note


BY_OPERATOR = "SKIPPED_BY_OPERATOR"
"""The code on record of a step that an operator skipped."""


class SagaRows(SagaLookup):
    """To be called within transactions."""

    def lock(self, name: str, position: int) -> Steps[SagaDelivery | None]:
        """Lock its delivery, in whichever state, so that no worker can write; None if it has ended.

        What is read in later statements is then what is.
        """
        tables = SagaTables(self.names, name)
        state = yield from tables.lock_in_any_state(position)
        return None if state is None else (yield from self.delivery_of(tables.queue, position))

    def restore(self, name: str, positions: Sequence[int]) -> Steps[None]:
        """Give those that are open and have no delivery a new one, as parked: somebody deleted theirs.

        Whoever ends a saga deletes its delivery before it writes the saga's row: under a lock on that row, a delivery
        that is not there has been deleted by hand.
        """
        lost = (
            f"SELECT s.position FROM {self.saga} s WHERE s.position IN ({whole_numbers(positions)}) "
            f"AND {self.without_delivery('queue')} ORDER BY s.position"
        )
        queue = {"queue": f"{SAGA_QUEUE}{name}"}
        if not (yield Query(lost, queue)).rows:
            return
        yield Query(
            f"SELECT s.position FROM {self.saga} s WHERE s.position IN ({whole_numbers(positions)}) "
            f"ORDER BY s.position{self.dialect.for_update}"
        )
        for [position] in (yield Query(lost, queue)).rows:
            yield Query(
                f"INSERT INTO {self.delivery} (state, queue, lane, position) "
                f"VALUES ({int(Stored.DEAD)}, :queue, {NO_LANE}, {position})",
                queue,
            )

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
        """Make those due at once whose delivery is in this state, with all their attempts before them.

        They count as claimed before: so that nobody takes the next attempt for the first, of which no other can still
        be on its way.
        """
        yield Query(
            f"UPDATE {self.delivery_by_key} SET {becomes(Transition.REQUEUE)}, due = {self.dialect.never}, "
            f"attempts = 0, claims = 1, error_code = '', error_message = '' WHERE {in_state(stored)} "
            f"AND queue = :queue AND {self.places([Place(NO_LANE, position) for position in positions])}",
            {"queue": f"{SAGA_QUEUE}{name}"},
        )

    def skip(self, position: int, skip: Skip, note: Note) -> Steps[None]:
        """Put a step on record as skipped, by whom and why. One that waited does so no longer."""
        params = {
            "position": position,
            "direction": int(skip.direction),
            "step": skip.step,
            "worker": cut(note.actor, ACTOR_LENGTH),
            "code": BY_OPERATOR,
            "text": cut(note.reason),
        }
        table = self.tables["saga_step"]
        this = "position = :position AND direction = :direction AND step = :step"
        there = yield Query(f"SELECT 1 FROM {table} WHERE {this}", params)
        if there.rows:
            yield Query(
                f"UPDATE {table} SET outcome = {int(StepOutcome.SKIPPED)}, worker = :worker, finished = {self.now}, "
                f"error_code = :code, error_message = :text WHERE {this}",
                params,
            )
            return
        before = yield Query(f"SELECT count(*) FROM {table} WHERE position = :position", params)
        yield Query(
            f"INSERT INTO {table} (position, direction, step, outcome, number, attempts, worker, error_code, "
            f"error_message) VALUES (:position, :direction, :step, {int(StepOutcome.SKIPPED)}, :number, 0, :worker, "
            ":code, :text)",
            {**params, "number": before.rows[0][0]},
        )

    def copy(self, old: int, new: int, fork: Fork, note: Note) -> Steps[None]:
        """Give a new saga the record of the steps that it takes over, and keep it from undoing them."""
        table = self.tables["saga_step"]
        if not fork.kept:
            return
        kept = {f"step_{n}": step for n, step in enumerate(fork.kept)}
        copied = "step, outcome, number, attempts, worker, started, finished, result, data, error_code, error_message"
        yield Query(
            f"INSERT INTO {table} (position, direction, {copied}) SELECT {new}, direction, {copied} FROM {table} "
            f"WHERE position = {old} AND direction = {int(Direction.FORWARD)} "
            f"AND step IN ({', '.join(f':{label}' for label in kept)})",
            kept,
        )
        for step in fork.not_undone:
            yield from self.skip(new, Skip(Direction.BACK, step), note)

    def message_ids(self, positions: Sequence[int]) -> Steps[dict[int, str]]:
        """The ids of the messages that started these, by position."""
        found = yield Query(f"SELECT position, id FROM {self.outbox} WHERE position IN ({whole_numbers(positions)})")
        return {position: text(identifier) for position, identifier in found.rows}
