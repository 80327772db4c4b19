"""What became of a saga that ran in memory, and assertions on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from postroom.rules.saga_plan import Direction
from postroom.saga.data import from_json
from postroom.telemetry.saga_events import StepEnd

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from postroom.message import Message
    from postroom.saga.steps import Step

D = TypeVar("D")
T = TypeVar("T")
_MARKS = {StepEnd.DONE: "✓", StepEnd.SKIPPED: "-", StepEnd.RETRY: "…", StepEnd.FAILED: "✗", StepEnd.LOST: "?"}


class Moment(NamedTuple):
    """An attempt at a step or a compensation."""

    step: str
    direction: Direction
    end: StepEnd
    attempt: int
    at: float
    """Seconds after the start, by the run's own clock."""
    code: str = ""
    error: BaseException | None = None

    def __str__(self) -> str:
        mark = "↩" if self.direction is Direction.BACK and self.end is StepEnd.DONE else _MARKS[self.end]
        why = f"  {self.code} {self.error if self.error is not None else ''}".rstrip() if self.code else ""
        undo = "undo " if self.direction is Direction.BACK else ""
        return f"{mark} {undo}{self.step}  at {self.at:g} s  attempt {self.attempt}  {self.end}{why}"


@dataclass(frozen=True)
class SagaRun(Generic[D]):
    """The end of a saga that ran in memory."""

    name: str
    id: str
    state: str
    """``completed``, ``compensated``, ``parked``, ``waiting`` (for an event that never comes) or ``stranded``."""
    data: D
    timeline: Sequence[Moment]
    """Every attempt, in order."""
    keys: Mapping[tuple[str, str], str]
    """The idempotency key of each function that was called: ``keys["charge", "do"]``, ``keys["charge", "undo"]``."""
    failed_step: str = ""
    """The step that turned or parked the saga, and why."""
    error_code: str = ""
    error_message: str = ""
    told: Sequence[Message] = ()
    """The signal to the saga that was to be told of the end."""
    scenario: str = ""
    """What `every_failure` did to it."""
    _results: Mapping[str, bytes | None] = field(default_factory=dict, repr=False)
    _steps: Mapping[str, Step[..., Any]] = field(default_factory=dict, repr=False)

    @property
    def done(self) -> list[str]:
        """The steps that were done, in that order; those undone later included."""
        return [one.step for one in self.timeline if one.direction is Direction.FORWARD and one.end is StepEnd.DONE]

    @property
    def skipped(self) -> list[str]:
        """The steps whose condition said no."""
        return [one.step for one in self.timeline if one.direction is Direction.FORWARD and one.end is StepEnd.SKIPPED]

    @property
    def compensated(self) -> list[str]:
        """The steps that were undone, in that order."""
        return [one.step for one in self.timeline if one.direction is Direction.BACK and one.end is StepEnd.DONE]

    @overload
    def result(self, step: Step[..., Coroutine[Any, Any, T]], /) -> T: ...

    @overload
    def result(self, step: Step[..., T], /) -> T: ...

    @overload
    def result(self, step: str, /) -> Any: ...

    def result(self, step: Step[..., Any] | str, /) -> Any:
        """What a step returned, as later steps get it; None if it was skipped or is not done."""
        name = step if isinstance(step, str) else step.name
        if name not in self._steps:
            raise LookupError(f"saga {self.name!r} has no step {name!r}: it has {', '.join(self._steps)}")
        found = self._results.get(name)
        return None if found is None else from_json(found, self._steps[name].result_kind, f"the result of {name!r}")

    def assert_completed(self) -> None:
        """Every step was done or skipped."""
        self._assert(self.state == "completed", "the saga should have completed")

    def assert_compensated(self, *steps: str) -> None:
        """The saga was undone: exactly these steps, in the order in which they were undone."""
        self._assert(self.state == "compensated", "the saga should have been compensated")
        expected = ", ".join(steps) or "nothing"
        undone = ", ".join(self.compensated) or "nothing"
        self._assert(self.compensated == [*steps], f"these should have been undone: {expected}; but it was: {undone}")

    def assert_parked(self, step: str | None = None) -> None:
        """The saga waits for an operator, because this step, or any, kept failing."""
        self._assert(self.state == "parked", "the saga should have been parked")
        at_fault = self.timeline[-1].step if self.timeline else ""
        self._assert(step in {None, at_fault}, f"{step} should have parked it, but {at_fault} did")

    def _assert(self, holds: bool, what: str) -> None:  # noqa: FBT001 - as `assert` is written
        if not holds:
            raise AssertionError(f"{what}\n{self}")

    def __str__(self) -> str:
        why = f"  failed at {self.failed_step}: {self.error_code} {self.error_message}" if self.failed_step else ""
        doing = f"  ({self.scenario})" if self.scenario else ""
        return "\n".join([f"{self.name} {self.id}  {self.state}{why}{doing}", *(f"  {one}" for one in self.timeline)])
