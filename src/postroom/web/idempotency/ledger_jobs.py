"""What requests ask of the ledger, until a connection is free for it: at once where many can ask together."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from postroom.store.ledger.batches import Asked, Begin, Finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.store.sql.steps import Steps
    from postroom.web.idempotency.keyed_flow import Do

MOST = 100
"""Jobs in a batch: what they write has to fit into one quick statement."""
AT_ONCE = 2
"""Batches of each kind under way: one that waits for a lock must not keep all others waiting."""
SLOW = 0.02
"""Seconds after which a batch may be waiting for a lock. Until then, jobs wait: in a larger batch each costs less."""


class Answer(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool:
        """Whether it is there, or nobody waits for it any more."""

    def set_result(self, result: Any, /) -> None:
        """Give it to whoever waits."""

    def set_exception(self, error: Any, /) -> None:
        """Raise this where it is waited for."""


class Job:
    """One thing that a request asks of the ledger, and its answer."""

    __slots__ = ("answer", "asked", "seconds", "steps")

    def __init__(self, action: Do, answer: Answer) -> None:
        self.steps: Steps[Any] = action.steps
        """What does it alone."""
        self.seconds = action.seconds
        self.asked: Asked | None = action.asked
        """What can be asked together with others."""
        self.answer = answer

    def succeed(self, result: Any) -> None:
        """Give the answer, if anybody still waits for it."""
        if not self.answer.done():
            self.answer.set_result(result)

    def fail(self, error: Exception) -> None:
        """Say why there is none."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Batch(NamedTuple):
    """One job, or several that ask together."""

    jobs: Sequence[Job]
    kind: type[Asked] | None = None
    begun: float = 0.0
    """When several were taken together, by this process's clock."""

    @property
    def asked(self) -> list[Asked]:
        """What they ask."""
        return [job.asked for job in self.jobs if job.asked is not None]

    @property
    def seconds(self) -> float:
        """How long it may take."""
        return self.jobs[0].seconds

    def answer(self, answers: Sequence[Any]) -> list[Job]:
        """Give each its answer; returns those to which there is none, and which have to be done alone."""
        for job, answer in zip(self.jobs, answers, strict=True):
            if answer is not None:
                job.succeed(answer)
        return [job for job, answer in zip(self.jobs, answers, strict=True) if answer is None]

    def fail(self, error: Exception) -> None:
        """There is no answer to any."""
        for job in self.jobs:
            job.fail(error)


class Jobs:
    """The jobs that wait. Several threads must take turns."""

    def __init__(self, *, has_batches: bool) -> None:
        self._has_batches = has_batches
        self._alone: deque[Job] = deque()
        self._together: dict[type[Asked], deque[Job]] = {Begin: deque(), Finish: deque()}
        self._begun: dict[type[Asked], list[float]] = {Begin: [], Finish: []}
        """When each batch under way was taken, the oldest first."""

    def put(self, job: Job) -> None:
        """Wait, for others that ask the same if there are any."""
        if self._has_batches and job.asked is not None:
            self._together[type(job.asked)].append(job)
        else:
            self._alone.append(job)

    def put_alone(self, jobs: Iterable[Job]) -> None:
        """Wait for a connection again, and do it alone this time."""
        for job in jobs:
            self._alone.append(job)

    def is_any_ready(self) -> bool:
        """Whether a free connection would have something to do."""
        return bool(self._alone) or any(map(self._is_ready, self._together))

    def take(self) -> Batch | None:
        """What a free connection does next; None if it has nothing to do."""
        if self._alone:
            return Batch([self._alone.popleft()])
        for kind in self._together:
            if self._is_ready(kind):
                batch = Batch(self._first(kind), kind, monotonic())
                self._begun[kind].append(batch.begun)
                return batch
        return None

    def end(self, batch: Batch) -> None:
        """It was done, with or without success: others may ask the same now."""
        if batch.kind is not None:
            self._begun[batch.kind].remove(batch.begun)

    def fail_all(self, error: Exception) -> None:
        """No connection will be free for those that wait."""
        for waiting in (self._alone, *self._together.values()):
            while waiting:
                waiting.popleft().fail(error)

    def _is_ready(self, kind: type[Asked]) -> bool:
        waiting, begun = self._together[kind], self._begun[kind]
        if not waiting or len(begun) == AT_ONCE:
            return False
        return not begun or len(waiting) >= MOST or monotonic() - begun[0] > SLOW

    def _first(self, kind: type[Asked]) -> list[Job]:
        """Those that wait longest; of several that finish the same entry, one."""
        waiting = self._together[kind]
        if kind is Begin:
            return [waiting.popleft() for _ in range(min(len(waiting), MOST))]
        taken: dict[tuple[str, str], Job] = {}
        again = []
        while waiting and len(taken) < MOST:
            job = waiting.popleft()
            entry = job.asked.entry  # type: ignore[union-attr]  # those that wait here have one
            if taken.setdefault((entry.scope, entry.key), job) is not job:
                again.append(job)
        waiting.extendleft(reversed(again))
        return list(taken.values())
