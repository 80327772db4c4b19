"""Declared steps: a function, what follows its failures, and the function that undoes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, Protocol, TypedDict, TypeVar, overload

from postroom.errors import InvalidSetting
from postroom.rules.backoff import LONGEST_DELAY, RetryPolicy
from postroom.rules.saga_failures import COMPENSATION_RETRY, DEFAULT_STEP_TIMEOUT, STEP_RETRY
from postroom.rules.saga_plan import Kind, PlannedStep
from postroom.runtime.functions import is_async
from postroom.saga.data import kind_of

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.saga.context import SagaContext

TIMEOUT = DEFAULT_STEP_TIMEOUT
LONGEST_NAME = 50
_NAME = re.compile(r"[a-z0-9_.-]{1,50}")

WHEN = "when=lambda order: order.total > 0"
UNTIL = "until=lambda order: order.opens_at"

OnTimeout = Literal["compensate", "continue"]
Errors = Collection[type[Exception]]
P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")
T = TypeVar("T")
UndoP = ParamSpec("UndoP")
UndoR = TypeVar("UndoR")


class ActionOptions(TypedDict, total=False):
    """What follows a failure of a function."""

    retry: RetryPolicy | None
    timeout: float
    permanent: Errors


class StepOptions(ActionOptions, Generic[D], total=False):
    """The options of a step or call."""

    name: str | None
    when: Callable[[D], bool] | None
    group: str
    pivot: bool


class RetiredOptions(ActionOptions, Generic[D], total=False):
    """The options of what was a step, call or wait."""

    kind: str
    name: str | None
    when: Callable[[D], bool] | None
    wait_timeout: float | None
    on_timeout: OnTimeout


class Action(Generic[P, R]):
    """A function of a saga. Called directly, it only calls the function, as a test may."""

    def __init__(
        self,
        function: Callable[P, R],
        shown: str,
        takes: tuple[str, ...],
        *,
        retry: RetryPolicy,
        timeout: float = TIMEOUT,
        permanent: Errors = (),
    ) -> None:
        """`shown` names it in errors; `takes` are the parameters beside ``saga`` that it may have."""
        self.function = function
        self.retry = retry
        self.timeout = positive_seconds(f"the timeout of {shown}", timeout)
        self.permanent = _errors(shown, permanent)
        self.parameters = _parameters(function, shown, takes)
        self.is_async = is_async(function)
        if not isinstance(retry, RetryPolicy):
            raise InvalidSetting(f"retry of {shown} is {retry!r}: give a RetryPolicy, as in RetryPolicy.consistency()")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def call(self, context: SagaContext[Any], value: object = None) -> Any:
        """Call the function as a saga does; `value` is an event or a result, for a function that takes one."""
        function: Callable[..., Any] = self.function
        return function(context, value) if len(self.parameters) > 1 else function(context)


class Compensation(Action[P, R]):
    """A function that undoes a step."""

    @property
    def compensation(self) -> NoReturn:
        """A compensation has none."""
        raise InvalidSetting(
            f"{named(self.function)} is a compensation, and cannot have one: what cannot be undone by retrying is "
            "parked for an operator"
        )


class Step(Action[P, R]):
    """A declared step. Made by the decorators of `Saga`."""

    def __init__(  # noqa: PLR0913 - what a step can be, all by name
        self,
        function: Callable[P, R],
        name: str,
        kind: Kind = Kind.STEP,
        *,
        retry: RetryPolicy | None = None,
        timeout: float = TIMEOUT,
        permanent: Errors = (),
        when: Callable[[Any], bool] | None = None,
        group: str = "",
        pivot: bool = False,
        event: str = "",
        wait_timeout: float | None = None,
        on_timeout: OnTimeout = "compensate",
        retired: bool = False,
    ) -> None:
        self.name = checked_name("step", name, "give another with name=…")
        shown = f"{kind} {name!r}"
        takes = ("event",) if kind is Kind.WAIT else ()
        super().__init__(function, shown, takes, retry=retry or STEP_RETRY, timeout=timeout, permanent=permanent)
        self.kind = kind
        self.when = None if when is None else _of_data(f"when of {shown}", when, WHEN)
        self.group = checked_name("group", group, "") if group else ""
        self.pivot = pivot
        self.event = event
        """What a wait waits for."""
        self.wait_timeout = wait_timeout
        """How long a wait waits, in seconds; None if only the saga's deadline ends it."""
        self.on_timeout = on_timeout
        self.retired = retired
        self.undo: Compensation[..., Any] | None = None
        """Its compensation."""
        self.follows_pivot = ""
        """The pivot that stands before it: it will never be undone."""

    @property
    def planned(self) -> PlannedStep:
        """The step as the plan of a new instance has it."""
        return PlannedStep(
            *(self.name, self.kind, self.group, self.pivot, self.undo is not None, self.event),
            attempts=_unless_default(self.retry, STEP_RETRY),
            undo_attempts=0 if self.undo is None else _unless_default(self.undo.retry, COMPENSATION_RETRY),
        )

    @cached_property
    def result_kind(self) -> Any:
        """The class that its result is decoded to: the one that the function says it returns."""
        return kind_of(self.function, "return")

    @cached_property
    def event_kind(self) -> Any:
        """The class that its event is decoded to."""
        return kind_of(self.function, self.parameters[-1]) if len(self.parameters) > 1 else Any

    @overload
    def compensation(self, function: Callable[UndoP, UndoR], /) -> Compensation[UndoP, UndoR]: ...

    @overload
    def compensation(
        self,
        function: None = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        timeout: float = TIMEOUT,
        permanent: Errors = (),
    ) -> CompensationDecorator: ...

    def compensation(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry: RetryPolicy | None = None,
        timeout: float = TIMEOUT,
        permanent: Errors = (),
    ) -> Any:
        """Make a function the compensation of this step.

        It takes ``(saga)``, or ``(saga, result)`` to get what the step returned. It runs if the saga fails after this
        step; a call's also if it is unknown whether the call has happened. It is retried (by default after 1 s,
        doubling up to 10 min, 15 attempts in all); what keeps failing parks the saga for an operator. Raises
        `InvalidSetting`.
        """

        def register(given: Callable[..., Any]) -> Compensation[..., Any]:
            if self.undo is not None:
                raise InvalidSetting(
                    f"step {self.name!r} already has the compensation {named(self.undo.function)}: a step has one; "
                    f"do the work of both in it"
                )
            if self.follows_pivot:
                raise InvalidSetting(
                    f"the compensation {named(given)} of {self.name!r} would never run: after the pivot "
                    f"{self.follows_pivot!r} a saga only goes forward; move the pivot, or leave the compensation out"
                )
            shown = f"the compensation {named(given)} of {self.name!r}"
            self.undo = Compensation(
                given,
                shown,
                ("result",),
                retry=retry or COMPENSATION_RETRY,
                timeout=timeout,
                permanent=permanent,
            )
            return self.undo

        return register if function is None else register(function)


class Sleep(Step[..., Any]):
    """A sleep. As a decorator, it takes the function that runs as a step when the saga wakes."""

    def __init__(
        self,
        name: str,
        *,
        seconds: float | None = None,
        until: Callable[[Any], datetime] | None = None,
        when: Callable[[Any], bool] | None = None,
        retired: bool = False,
    ) -> None:
        super().__init__(_wake, name, Kind.SLEEP, when=when, retired=retired)
        if (seconds is None) == (until is None):
            raise InvalidSetting(f"sleep {name!r} needs a time: give either seconds=… or until=…")
        self.seconds = None if seconds is None else positive_seconds(f"seconds of sleep {name!r}", seconds)
        self.until = None if until is None else _of_data(f"until of sleep {name!r}", until, UNTIL)
        """A function of the data that says when to wake."""

    @property
    def has_function(self) -> bool:
        """Whether a function runs when the saga wakes."""
        return self.function is not _wake

    def __call__(self, function: Callable[..., Any]) -> Sleep:
        """Run this function when the saga wakes."""
        if self.function is not _wake:
            raise InvalidSetting(f"sleep {self.name!r} already has the function {named(self.function)}: it has one")
        self.parameters = _parameters(function, f"sleep {self.name!r}", ())
        self.is_async = is_async(function)
        self.function = function
        return self


def _wake(_saga: object) -> None:
    """What runs after a sleep that has no function."""


class CompensationDecorator(Protocol):
    """What ``compensation(…)`` returns."""

    def __call__(self, function: Callable[P, R], /) -> Compensation[P, R]: ...  # noqa: D102 - as above


class StepDecorator(Protocol):
    """What ``step(…)`` and the like return."""

    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...  # noqa: D102 - as above


def named(function: Any) -> str:
    """The function as errors show it."""
    return str(getattr(function, "__qualname__", repr(function)))


def checked_name(what: str, name: object, remedy: str) -> str:
    """A name of a saga, step, group or event. Raises `InvalidSetting`."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    allowed = f"use 1 to {LONGEST_NAME} of the characters a-z, 0-9, _, . and -"
    raise InvalidSetting(f"the {what}'s name {name!r} is not valid: {allowed}{f', or {remedy}' if remedy else ''}")


def positive_seconds(what: str, value: object) -> float:
    """A time in seconds, above 0. Raises `InvalidSetting`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST_DELAY:
        return float(value)
    raise InvalidSetting(f"{what} is {value!r}: give seconds above 0, up to {LONGEST_DELAY:.0f}")


def _errors(shown: str, permanent: object) -> tuple[type[Exception], ...]:
    try:
        classes: tuple[Any, ...] = tuple(permanent)  # type: ignore[arg-type]  # checked here
    except TypeError:
        classes = (permanent,)
    if all(isinstance(one, type) and issubclass(one, Exception) for one in classes):
        return classes
    raise InvalidSetting(f"permanent of {shown} is {permanent!r}: give classes of exceptions, as in (ValueError,)")


def _of_data(what: str, function: Any, example: str) -> Callable[[Any], Any]:
    if not callable(function) or is_async(function) or len(_needed(function)) != 1:
        raise InvalidSetting(f"{what} is {function!r}: give a sync function of the data, as in {example}")
    checked: Callable[[Any], Any] = function
    return checked


def _parameters(function: Callable[..., Any], shown: str, takes: tuple[str, ...]) -> list[str]:
    """The parameters that must be given: ``saga``, and perhaps one of `takes`."""
    forms = " or ".join(["(saga)", *(f"(saga, {other})" for other in takes)])
    if not callable(function):
        raise InvalidSetting(f"{shown} is {function!r}, not a function: give one that takes {forms}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{shown}: {named(function)} is a generator, which a call would not run; use no yield")
    needed = _needed(function)
    if len(needed) not in range(1, len(takes) + 2):
        raise InvalidSetting(f"{shown}: {named(function)}{inspect.signature(function)} must take {forms}")
    return needed


def _needed(function: Callable[..., Any]) -> list[str]:
    """The names of the positional parameters without default; none if one must be given by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        return []
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return [one.name for one in parameters if one.default is one.empty and one.kind in positional]


def _unless_default(policy: RetryPolicy, default: RetryPolicy) -> int:
    """How many attempts the policy has; 0 if as many as the default, so that plans stay short."""
    return 0 if policy.max_attempts == default.max_attempts else policy.max_attempts
