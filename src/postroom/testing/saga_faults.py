"""Faults that a test injects into a saga: what a function raises, and when its worker dies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting
from postroom.rules.saga_plan import Direction

if TYPE_CHECKING:
    from postroom.saga.saga import Saga

Raised = Exception | type[Exception]
Fail = Raised | Sequence[Raised | None]
"""What a function raises on every attempt, or on each in turn."""


class Injected(Exception):
    """The failure of ``fail_at``. It may pass, so the step is retried as its policy says."""


class WorkerDied(BaseException):
    """The worker is gone in this moment. Nothing that it has not written stays."""


@dataclass(frozen=True)
class Fault:
    """What is raised instead of a function's return."""

    error: BaseException
    after: bool = False
    """Its effect has happened."""


@dataclass
class Faults:
    """The faults of one run: for each function a source of faults, asked at each attempt."""

    sources: dict[tuple[Direction, str], Callable[[int], Fault | None]] = field(default_factory=dict)
    scenario: str = ""
    _calls: dict[tuple[Direction, str], int] = field(default_factory=dict)

    @classmethod
    def given(
        cls,
        saga: Saga[Any],
        fail_at: str | None,
        fail: Mapping[str, Fail] | None,
        fail_undo: Mapping[str, Fail] | None,
    ) -> Faults:
        """The faults that a test asks for. Raises `InvalidSetting` for a step that does not exist."""
        forward: dict[str, Fail] = {**(fail or {})}
        if fail_at is not None:
            forward[fail_at] = Injected(f"the test lets {fail_at} fail")
        for name in (*forward, *(fail_undo or {})):
            if name not in saga.steps:
                raise InvalidSetting(f"saga {saga.name!r} has no step {name!r}: it has {', '.join(saga.steps)}")
        for name in fail_undo or {}:
            if saga.steps[name].undo is None:
                raise InvalidSetting(f"step {name!r} has no compensation that could fail")
        sources = {(Direction.FORWARD, name): _source(name, what) for name, what in forward.items()}
        sources |= {(Direction.BACK, name): _source(name, what) for name, what in (fail_undo or {}).items()}
        return cls(sources)

    def next(self, step: str, direction: Direction) -> Fault | None:
        """The fault of this attempt."""
        place = direction, step
        self._calls[place] = self._calls.get(place, 0) + 1
        source = self.sources.get(place)
        return None if source is None else source(self._calls[place])


def always(error: BaseException, *, after: bool = False) -> Callable[[int], Fault | None]:
    """The same fault at every attempt."""
    return lambda _attempt: Fault(error, after)


def once(error: BaseException, *, after: bool = False) -> Callable[[int], Fault | None]:
    """A fault at the first attempt."""
    return lambda attempt: Fault(error, after) if attempt == 1 else None


def _source(step: str, what: Any) -> Callable[[int], Fault | None]:
    if _is_error(what):
        return always(what)
    if isinstance(what, Sequence) and not isinstance(what, str) and all(one is None or _is_error(one) for one in what):
        errors = list(what)

        def turn(attempt: int) -> Fault | None:
            error = errors[attempt - 1] if attempt <= len(errors) else None
            return None if error is None else Fault(error)

        return turn
    raise InvalidSetting(f"fail of {step!r} is {what!r}: give an exception, or a list of exceptions and None")


def _is_error(what: object) -> bool:
    return isinstance(what, Exception) or (isinstance(what, type) and issubclass(what, Exception))
