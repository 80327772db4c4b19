"""The journal port: all that an instance reads, runs and writes under its lease.

`stored_journal` keeps it in the database. `memory_journal` keeps it in memory, for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from postroom.message import Message
    from postroom.rules.saga_plan import SagaOutcome
    from postroom.saga.running.step_calls import Returned, StepCall
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.values import Entry, Instance, Logged, Waiting


class Record(NamedTuple):
    """What is written together when something of an instance has ended."""

    entries: Sequence[Entry]
    end: SagaOutcome | None = None
    """The instance ends with it."""
    event: UUID | None = None
    """The event that a wait took, to be removed."""
    tell: Message | None = None
    """What is sent when the instance ends."""
    keeps_attempts: bool = False
    """Others of its group run beside it: their attempts go on counting."""


class Turning(NamedTuple):
    """What is written when an instance turns."""

    entries: Sequence[Entry]
    step: str
    code: str
    text: str


class NotBegun(Exception):
    """A function cannot be called now, through no fault of its own: no attempt counts."""

    def __init__(self, delay: float, code: str, reason: str) -> None:
        """`delay`: seconds after which it is worth another try."""
        super().__init__(reason)
        self.delay = delay
        self.code = code
        self.reason = reason


class EarlierCallHangs(TimeoutError):
    """An earlier call of the function has not ended though its time is up, so it is not called: that is an attempt."""

    def __init__(self, step: str, timeout: float) -> None:
        super().__init__(f"an earlier call of {step!r} still runs although its time is up")
        self.timeout = timeout
        """Seconds that the function has: until then, it is not worth another try."""


class Journal(Protocol):
    """What all instances of one saga have in common: where they are recorded, and how their functions are called.

    Every write is made only if the claim's token still holds the delivery. The methods wait while the database is away;
    only `run_step` and `run_call` raise, namely what the function raised, `TimeoutError` if it took too long, or
    `NotBegun`.
    """

    def monotonic(self) -> float:
        """Seconds, by a clock that only goes forward."""
        ...

    def now(self) -> datetime:
        """The time of day, with a time zone."""
        ...

    async def read(self, claimed: Claimed) -> Instance | None:
        """Read the instance again; None if the lease is lost. Whatever was about to commit has ended before."""
        ...

    async def run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
        """Call a function and write its record in one transaction. Nothing of it stays, unless it is `WRITTEN`.

        If the answer to the commit was lost, the record is read before the function is called again.
        """
        ...

    async def run_call(self, call: StepCall) -> Returned:
        """Call a function while no transaction is open."""
        ...

    async def log(self, claimed: Claimed, record: Record) -> Logged:
        """Write a record in a transaction of its own, together with those of other instances."""
        ...

    async def turn(self, claimed: Claimed, turning: Turning, token: int) -> bool:
        """Change the direction and the token; False if nothing was written."""
        ...

    async def wait(
        self,
        claimed: Claimed,
        step: str,
        event: str | None,
        due_in: float,
        after: UUID | None = None,
        unreadable: str = "",
    ) -> Waiting:
        """Look for an event; if there is none, give up the lease until one comes or the time has passed.

        If `due_in` is 0 or less, it only looks. Only events behind `after` count: those up to there were found before,
        and could not be read. `unreadable` says why, and the instance is listed as stranded by it.
        """
        ...

    async def park(self, claimed: Claimed, step: str, code: str, text: str, *, attempted: bool) -> bool:
        """Leave the instance to an operator; False if the lease is lost."""
        ...

    async def put_back(self, claimed: Claimed, code: str, text: str, seconds: float, *, tried: bool = False) -> bool:
        """Give up the lease for some seconds without counting an attempt; False if the lease is lost.

        Nor does this claim count, unless it has `tried` what comes next: who claims it then is not the first to try.
        """
        ...
