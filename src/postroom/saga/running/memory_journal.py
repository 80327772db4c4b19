"""The journal in memory: one instance, its delivery, and a clock that moves only when it is told to.

`postroom.testing.run_saga` and this project's own tests run instances with it, by the same code as a relay does.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.saga_state import STEP_MISSING
from postroom.saga.messages import read_start
from postroom.saga.running.left import NotTried, RetryLater
from postroom.store.outbox.leases import Claimed, new_token
from postroom.store.saga.values import LOST, Event, Instance, Logged, StepRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.message import Message
    from postroom.saga.running.journal import Record, Turning
    from postroom.saga.running.left import Left
    from postroom.saga.running.step_calls import Returned, StepCall
    from postroom.store.saga.values import Waiting

POSITION = 1
BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)


class MemoryJournal:
    """One instance, in memory."""

    def __init__(
        self,
        message: Message,
        deadline: float | None = None,
        connection: Any = None,
        before: Callable[[StepCall], None] = lambda _call: None,
    ) -> None:
        """`message` starts the instance. `before` is called before each function, and may raise instead of it."""
        self.message = message
        self.connection = connection
        self._before = before
        self._clock = 0.0
        self._deadline = deadline
        start = read_start(message.headers)
        self.plan = start.plan
        name = message.topic.partition(":")[2]
        self.instance = Instance(POSITION, name, start.id, Direction.FORWARD, SagaOutcome.OPEN, None, 0.0, {})
        self.began: dict[str, float] = {}
        """When steps began to wait."""
        self.events: list[Event] = []
        self.told: list[Message] = []
        """What was sent when the instance ended."""
        self.state: Stored | None = Stored.READY
        """Of the delivery; None when the instance has ended."""
        self.due = 0.0
        self.token = 0
        self.attempts = 0
        self.claims = 0
        self.error = ("", "")

    def monotonic(self) -> float:
        """Seconds that the clock was moved."""
        return self._clock

    def now(self) -> datetime:
        """The time of day, as far as the clock was moved from the beginning of 2030."""
        return BEGINNING + timedelta(seconds=self._clock)

    def move_clock(self, seconds: float) -> None:
        """Let time pass."""
        self._clock += seconds

    def claim(self) -> Claimed | None:
        """Take the instance up as a worker does, if it is due."""
        if self.state in {None, Stored.DEAD} or self.due > self._clock:
            return None
        self.state, self.token = Stored.READY, new_token()
        self.claims += 1
        return Claimed(POSITION, NO_LANE, self.token, self.attempts, self.claims, self.message)

    def settle(self, claimed: Claimed, left: Left) -> None:
        """Do with the delivery what an engine does when an instance is left."""
        if not self._holds(claimed):
            return
        match left:
            case RetryLater(delay, code, text):
                self.attempts += 1
                self._release(Stored.RETRY, delay)
                self.error = (code, text)
            case NotTried(delay, code, text):
                self._release(Stored.RETRY if delay else Stored.READY, delay, claims=self.claims - 1)
                self.error = (code, text) if delay else self.error
            case _:
                pass

    def signal(self, event: str, payload: bytes) -> None:
        """Deliver an event."""
        self.events.append(Event(uuid.uuid4(), event, payload))
        if self.state is Stored.SCHEDULED:
            self.due = self._clock

    def read_now(self) -> Instance:
        """The instance as it is on record."""
        rows = {
            key: msgspec.structs.replace(row, waited=self._clock - self.began.get(key[1], self._clock))
            for key, row in self.instance.rows.items()
        }
        remaining = None if self._deadline is None else self._deadline - self._clock
        return msgspec.structs.replace(self.instance, rows=rows, remaining=remaining, age=self._clock)

    async def read(self, claimed: Claimed) -> Instance | None:
        """Read the instance again."""
        return self.read_now() if self.state is None or self._holds(claimed) else None

    async def run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
        """Call a function, and write its record."""
        return await self.log(call.claimed, record(await self._run(call, self.connection)))

    async def run_call(self, call: StepCall) -> Returned:
        """Call a function without a connection."""
        return await self._run(call, None)

    async def _run(self, call: StepCall, connection: Any) -> Returned:
        self._before(call)
        return await call.arun(connection) if call.is_async else call.run(connection)

    async def log(self, claimed: Claimed, record: Record) -> Logged:
        """Write a record."""
        if not self._holds(claimed):
            return Logged.LEASE_LOST
        rows = self.instance.rows
        for entry in record.entries:
            there = rows.get((entry.direction, entry.step))
            if there is not None and there.outcome is not StepOutcome.WAITING:
                return Logged.DONE_BEFORE
        for entry in record.entries:
            rows.pop((entry.direction, entry.step), None)
            rows[entry.direction, entry.step] = StepRow(
                entry.outcome, self.attempts + 1, entry.result, entry.data, 0.0, entry.error_code, entry.error_message
            )
        self.events = [one for one in self.events if one.message_id != record.event]
        self.attempts, self.claims, self.error = self.attempts * record.keeps_attempts, 1, ("", "")
        if record.end is not None:
            self.instance.outcome = record.end
            self.state = None
            self.told += [] if record.tell is None else [record.tell]
        return Logged.WRITTEN

    async def turn(self, claimed: Claimed, turning: Turning, token: int) -> bool:
        """Change the direction and the token."""
        rows = self.instance.rows
        if not self._holds(claimed) or any(
            rows[entry.direction, entry.step].outcome is StepOutcome.DONE
            for entry in turning.entries
            if (entry.direction, entry.step) in rows
        ):
            return False
        for entry in turning.entries:
            rows[entry.direction, entry.step] = StepRow(
                entry.outcome, self.attempts + 1, None, None, 0.0, entry.error_code, entry.error_message
            )
        instance = self.instance
        instance.direction = Direction.BACK
        instance.failed_step, instance.error_code, instance.error_message = turning.step, turning.code, turning.text
        self.token, self.attempts, self.claims = token, 0, 1
        return True

    async def wait(
        self,
        claimed: Claimed,
        step: str,
        event: str | None,
        due_in: float,
        after: uuid.UUID | None = None,
        unreadable: str = "",
    ) -> Waiting:
        """Look for an event; if there is none, give up the lease."""
        if not self._holds(claimed):
            return LOST
        if (Direction.FORWARD, step) not in self.instance.rows:
            self.instance.rows[Direction.FORWARD, step] = StepRow(StepOutcome.WAITING)
            self.began[step] = self._clock
        seen = [one.message_id for one in self.events].index(after) + 1 if after else 0
        for one in self.events[seen:]:
            if one.name == event:
                return one
        if due_in > 0:
            self.attempts = 0
            self.error = (STEP_MISSING, unreadable) if unreadable else ("", "")
            self._release(Stored.SCHEDULED, due_in)
        return None

    async def park(self, claimed: Claimed, step: str, code: str, text: str, *, attempted: bool) -> bool:
        """Leave the instance to an operator."""
        if not self._holds(claimed):
            return False
        self.attempts += attempted
        self.error = (code, text)
        self.instance.failed_step = self.instance.failed_step or step
        self._release(Stored.DEAD, 0.0)
        return True

    async def put_back(self, claimed: Claimed, code: str, text: str, seconds: float, *, tried: bool = False) -> bool:
        """Give up the lease for some seconds."""
        if not self._holds(claimed):
            return False
        self.error = (code, text)
        self._release(Stored.SCHEDULED, seconds, claims=max(int(tried), self.claims - 1))
        return True

    def _holds(self, claimed: Claimed) -> bool:
        return self.state is Stored.READY and self.token == claimed.token

    def _release(self, state: Stored, seconds: float, claims: int = 0) -> None:
        self.state, self.due = state, self._clock + seconds
        self.token, self.claims = 0, claims
