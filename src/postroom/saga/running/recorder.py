"""Records what an instance does: makes the rows, notes in memory what is written, and reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.saga.messages import tell_message
from postroom.saga.running.journal import Record
from postroom.store.saga.values import Entry
from postroom.telemetry.saga_events import StepEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_plan import SagaOutcome
    from postroom.saga.running.running import Running
    from postroom.saga.running.state import InstanceState
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.values import Event


class Recorder:
    """What one instance writes."""

    def __init__(self, running: Running, state: InstanceState) -> None:
        self._running = running
        self._state = state

    def done(self, step: str, direction: Direction, seconds: float, result: bytes | None, data: bytes | None) -> Entry:
        """The row of a step that is done, or undone."""
        return Entry(direction, step, StepOutcome.DONE, seconds, result, data, worker=self._running.worker)

    def skipped(self, step: str, direction: Direction = Direction.FORWARD) -> Entry:
        """The row of a step that does not run, or need not be undone."""
        return Entry(direction, step, StepOutcome.SKIPPED, worker=self._running.worker)

    def failed(self, step: str, code: str, text: str, seconds: float = 0.0) -> Entry:
        """The row of a step that the saga turns at."""
        return Entry(
            *(Direction.FORWARD, step, StepOutcome.FAILED, seconds),
            error_code=code[:CODE_LENGTH],
            error_message=cut(text),
            worker=self._running.worker,
        )

    def record(self, entries: Sequence[Entry], end: SagaOutcome | None, event: Event | None = None) -> Record:
        """What is written with these rows."""
        tell = None
        if end is not None and self._state.tell is not None:
            data = next((one.data for one in reversed(entries) if one.data is not None), self._state.data)
            tell = tell_message(self._state.tell, end, data, f"{self._running.saga.name}/{self._state.id}")
        return Record(entries, end, None if event is None else event.message_id, tell)

    def written(self, record: Record) -> None:
        """Note what is written, and report it."""
        state, reports = self._state, self._running.reports
        attempts = state.claimed.attempts + 1
        for one in record.entries:
            end = StepEnd.SKIPPED if one.outcome is StepOutcome.SKIPPED else StepEnd.DONE
            reports.step(state.id, one.step, one.direction, end, one.seconds, attempts)
        state.enter(record.entries)
        if state.claimed.attempts or state.claimed.claims != 1:
            kept = state.claimed.attempts if record.keeps_attempts else 0
            self.go_on_as(msgspec.structs.replace(state.claimed, attempts=kept, claims=1))
        if record.end is not None:
            state.has_ended = True
            reports.ended(state.id, record.end, state.age(self._running.journal.monotonic()))

    def go_on_as(self, claimed: Claimed) -> None:
        """Go on under another claim: its token or its counts have changed."""
        self._running.replace(self._state.claimed, claimed)
        self._state.claimed = claimed
