"""Runs instances in memory: what a relay does with a delivery, by a clock that tests move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.rules.lifecycle import Stored
from postroom.saga.messages import read_start
from postroom.saga.running.instance import InstanceRun
from postroom.saga.running.memory_journal import MemoryJournal
from postroom.saga.running.reports import Reports
from postroom.saga.running.running import Running

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from postroom import Saga
    from postroom.saga.running.left import Left


class Runs:
    """One instance of a saga, taken up as often as it is due."""

    def __init__(
        self,
        saga: Saga[Any],
        data: Any = None,
        *,
        deadline: float | None = None,
        tracer: Tracer | None = None,
        **journal: Any,
    ) -> None:
        message = saga.start_message({} if data is None else data, "one")
        self.saga = saga
        self.journal = MemoryJournal(message, deadline, **journal)
        self.start = read_start(message.headers)
        self.tracer = tracer
        self.events: list[Any] = []
        self.is_stopping = False
        self.parked: list[tuple[str, str]] = []

    async def take_up(self, saga: Saga[Any] | None = None) -> Left | None:
        """Run the instance if it is due, and settle its delivery."""
        claimed = self.journal.claim()
        if claimed is None:
            return None
        reports = Reports(self.saga.name, self.events.append)
        running = Running(
            saga=saga or self.saga,
            journal=self.journal,
            reports=reports,
            classifier=DEFAULT_CLASSIFIER,
            worker="worker",
            tracer=self.tracer,
            is_stopping=lambda: self.is_stopping,
            on_parked=lambda _claimed, code, text: self.parked.append((code, text)),
        )
        run = InstanceRun(running, claimed, self.start, self.journal.read_now(), self.journal.monotonic())
        left = await run.run()
        self.journal.settle(run.claimed, left)
        reports.flush()
        return left

    async def until_settled(self, times: int = 50) -> None:
        """Take it up until it ends, is parked or waits for an event, moving the clock to when it is due."""
        for _ in range(times):
            if self.journal.state in {None, Stored.DEAD}:
                return
            self.journal.move_clock(max(0.0, self.journal.due - self.journal.monotonic()))
            await self.take_up()
        raise AssertionError("it does not settle")

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Direction, step and outcome of every row, in order."""
        return [
            (direction.name, step, row.outcome.name) for (direction, step), row in self.journal.instance.rows.items()
        ]

    @property
    def outcome(self) -> str:
        """How the instance ended."""
        return self.journal.instance.outcome.name
