"""What a worker knows of the instance that it holds. It stays true as long as the lease holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.saga_failures import Position
from postroom.rules.saga_plan import Direction, End, SagaOutcome, StepOutcome, next_move
from postroom.saga.context import SagaFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.rules.saga_plan import Move
    from postroom.saga.messages import Start
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.values import Entry, Instance


class InstanceState:
    """The record of an instance, kept in memory and brought up to date with everything that is written."""

    def __init__(self, claimed: Claimed, start: Start, instance: Instance, read_at: float) -> None:
        """`read_at` is when it was read, by a monotonic clock."""
        self.id = start.id
        self.plan = start.plan
        self.tell = start.tell
        self.claimed = claimed
        """The claim under which it runs now: a turn changes its token."""
        self.direction = Direction.FORWARD
        self.has_ended = False
        self.outcomes: dict[tuple[Direction, str], StepOutcome] = {}
        self.results: dict[str, bytes | None] = {}
        """What steps returned that are done."""
        self.data = claimed.message.payload
        self.failure: SagaFailure | None = None
        self._waited: dict[str, float] = {}
        self.load(instance, read_at)

    def load(self, instance: Instance, read_at: float) -> None:
        """Take over what was read."""
        self.direction = instance.direction
        if self.direction is Direction.BACK:
            self.failure = SagaFailure(instance.failed_step, instance.error_code, instance.error_message)
        self.has_ended = instance.outcome is not SagaOutcome.OPEN
        self._remaining, self._age, self._read_at = instance.remaining, instance.age, read_at
        self.data = self.claimed.message.payload
        self.outcomes, self.results, self._waited = {}, {}, {}
        for (direction, step), row in instance.rows.items():
            self._enter(direction, step, row.outcome, row.result, row.data)
            if row.outcome is StepOutcome.WAITING:
                self._waited[step] = row.waited

    def next_move(self) -> Move:
        """What comes next."""
        return next_move(self.plan, self.direction, self.outcomes)

    def end_after(self, entries: Iterable[Entry]) -> SagaOutcome | None:
        """How the instance ends if these entries are its last."""
        outcomes = self.outcomes | {(one.direction, one.step): one.outcome for one in entries}
        move = next_move(self.plan, self.direction, outcomes)
        return move.outcome if isinstance(move, End) else None

    def enter(self, entries: Iterable[Entry]) -> None:
        """Note what was written."""
        for one in entries:
            self._enter(one.direction, one.step, one.outcome, one.result, one.data)

    def are_done(self, steps: Iterable[str]) -> bool:
        """Whether it is on record that all of these steps are done."""
        return all(self.outcomes.get((Direction.FORWARD, step)) is StepOutcome.DONE for step in steps)

    def turn(self, entries: Iterable[Entry], failure: SagaFailure) -> None:
        """Note that it goes back from now on, and why."""
        self.enter(entries)
        self.direction, self.failure = Direction.BACK, failure

    def _enter(
        self, direction: Direction, step: str, outcome: StepOutcome, result: bytes | None, data: bytes | None
    ) -> None:
        self.outcomes[direction, step] = outcome
        if direction is Direction.FORWARD and outcome is StepOutcome.DONE:
            self.results[step] = result
        if data is not None:
            self.data = data

    def at(self, now: float) -> Position:
        """Where the instance stands now."""
        claimed = self.claimed
        return Position(
            self.plan, self.direction, self.outcomes.copy(), claimed.attempts, claimed.claims, self.remaining(now)
        )

    def remaining(self, now: float) -> float | None:
        """Seconds to the deadline; None without one."""
        return None if self._remaining is None else self._remaining - (now - self._read_at)

    def age(self, now: float) -> float:
        """Seconds since the instance was started."""
        return self._age + now - self._read_at

    def waited(self, step: str, now: float) -> float:
        """Seconds since a step began to wait; 0 if it has not."""
        waited = self._waited.get(step)
        return 0.0 if waited is None else waited + now - self._read_at

    def is_waiting(self, step: str) -> bool:
        """Whether it is on record that a step waits."""
        return step in self._waited

    def note_waiting(self, step: str, now: float) -> None:
        """Note that it is on record that a step waits, if it was not before."""
        if step not in self._waited:
            self._waited[step] = self._read_at - now
            self.outcomes[Direction.FORWARD, step] = StepOutcome.WAITING
