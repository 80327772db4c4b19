"""Read instances with the record of their steps, and whether they are still held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.store.saga.values import Instance, StepRow
from postroom.store.sql.operations import chunks
from postroom.store.sql.rows import as_bytes
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.tables import SagaTables


class Reading:
    def __init__(self, sql: SagaTables) -> None:
        self._sql = sql

    def read(self, positions: Sequence[int]) -> Steps[dict[int, Instance]]:
        """The instances at these positions; those that do not exist are left out."""
        instances: dict[int, Instance] = {}
        for some in chunks(positions):
            instances |= yield from self._instances(some)
        return instances

    def read_held(self, claimed: Sequence[Claimed]) -> Steps[dict[int, Instance | None]]:
        """The instances whose deliveries are still held, by position; None for a delivery without an instance.

        Looks at the leases last. A worker that has lost its lease and reads what another has done since would begin
        what comes next, while the other relies on being the first to do so.
        """
        instances = yield from self.read([one.position for one in claimed])
        held = yield from self._sql.held(claimed)
        return {position: instances.get(position) for position, _ in held}

    def _instances(self, positions: Sequence[int]) -> Steps[dict[int, Instance]]:
        sql = self._sql
        since = sql.dialect.seconds_since
        source, params = sql.at(sql.saga, positions)
        found = yield Query(
            f"SELECT position, name, id, direction, outcome, {since('deadline')}, {since('started')}, failed_step, "
            f"error_code, error_message, aborted_by {source}",
            params,
        )
        instances = {
            position: Instance(
                position=position,
                name=name,
                id=id_,
                direction=Direction(direction),
                outcome=SagaOutcome(outcome),
                remaining=None if past is None else -float(past),
                age=float(age),
                rows={},
                failed_step=failed_step,
                error_code=code,
                error_message=text,
                aborted_by=aborted_by,
            )
            for position, name, id_, direction, outcome, past, age, failed_step, code, text, aborted_by in found.rows
        }
        source, params = sql.at(sql.step, positions)
        steps = yield Query(
            f"SELECT position, direction, step, outcome, attempts, result, data, {since('started')}, error_code, "
            f"error_message {source} ORDER BY position, number, finished",
            params,
        )
        for position, direction, step, outcome, attempts, result, data, waited, code, text in steps.rows:
            if position in instances:
                instances[position].rows[Direction(direction), step] = StepRow(
                    outcome=StepOutcome(outcome),
                    attempts=attempts,
                    result=None if result is None else as_bytes(result),
                    data=None if data is None else as_bytes(data),
                    waited=float(waited),
                    error_code=code,
                    error_message=text,
                )
        return instances

    def holds(self, claimed: Claimed) -> Steps[bool]:
        """Whether the token still holds the delivery, which is locked then. Only in `unless_locked`.

        Whatever was about to commit under the token has ended.
        """
        return (yield from self._sql.lock_now(claimed)) is not None

    def begin(self, claimed: Claimed) -> Steps[bool]:
        """Come first in a step's transaction; False if the lease is lost.

        SQLite refuses a transaction that has read, and writes after another has: so it writes first. Other databases
        lock rows, and do so last: there this does nothing.
        """
        if self._sql.dialect.for_update:
            return True
        return bool((yield from self._sql.lock([claimed])))
