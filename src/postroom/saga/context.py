"""The context: what a function of a saga is given, by custom under the name ``saga``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from postroom.rules.saga_calls import call_headers, call_key, correlation_id
from postroom.saga.data import from_json
from postroom.saga.steps import Step, checked_name

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from datetime import datetime

    from postroom.rules.saga_plan import Direction

D = TypeVar("D")
T = TypeVar("T")


class SagaFailure(NamedTuple):
    """Why a saga is undone: the step that failed, or was next when it was aborted or its time was over; and the reason.

    The code and the text are those of `Refused`, if the step raised that.
    """

    step: str
    code: str
    text: str


class SagaContext(Generic[D]):
    """One run of one function of an instance."""

    def __init__(  # noqa: PLR0913 - what a function may ask, all by name
        self,
        *,
        name: str,
        id: str,
        step: str,
        direction: Direction,
        attempt: int,
        data: D,
        connection: Any,
        started_at: datetime,
        deadline: datetime | None,
        steps: Mapping[str, Step[..., Any]],
        results: Mapping[str, bytes | None],
        failure: SagaFailure | None = None,
    ) -> None:
        """`steps` are those that the code declares; `results` are those of the steps that are done, as JSON."""
        self.name = name
        """The saga's name."""
        self.id = id
        """The instance's id."""
        self.step = step
        """The name of the step that is done or undone."""
        self.direction = direction
        self.attempt = attempt
        """1 for the first attempt of this function, 2 for the next."""
        self.data = data
        """The saga's data. A change is kept when the function returns; in a group it is read-only."""
        self.connection = connection
        """The open transaction, in which this step is logged too. None in a call, whose effects are elsewhere."""
        self.started_at = started_at
        self.deadline = deadline
        self.failure = failure
        """Why the saga is undone; None on the way forward."""
        self._steps = steps
        self._results = results

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt of this step in this direction."""
        return call_key(self.name, self.id, self.step, self.direction)

    @property
    def headers(self) -> dict[str, str]:
        """Headers for a request or message to another service: the key, and what `Inbox.barrier` needs there."""
        return call_headers(self.name, self.id, self.step, self.direction)

    def correlation_id(self, event: str) -> str:
        """A text to send along: whoever passes it to `postroom.saga.reply` signals this event to this instance."""
        return correlation_id(self.name, self.id, checked_name("event", event, ""))

    @overload
    def result(self, step: Step[..., Coroutine[Any, Any, T]], /) -> T: ...

    @overload
    def result(self, step: Step[..., T], /) -> T: ...

    @overload
    def result(self, step: str | None = None, /) -> Any: ...

    def result(self, step: Step[..., Any] | str | None = None, /) -> Any:
        """What a step returned, decoded to the class of its annotation; None if it was skipped or is not done.

        In a compensation, the default is the step that is undone. Raises `LookupError` for a step that the saga does
        not have.
        """
        name = step.name if isinstance(step, Step) else step or self.step
        found = self._results.get(name)
        declared = self._steps.get(name)
        if declared is None and name not in self._results:
            known = ", ".join(self._steps) or "none"
            raise LookupError(f"saga {self.name!r} has no step {name!r}: it has {known}")
        if found is None:
            return None
        return from_json(found, declared.result_kind if declared else Any, f"the result of step {name!r}")

    def __repr__(self) -> str:
        """Leave out the data, which does not belong in logs."""
        return f"SagaContext({self.name!r}, {self.id!r}, {self.step!r}, {self.direction.name}, attempt={self.attempt})"
