"""The decorators that declare a saga's steps, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, overload

from postroom.errors import InvalidSetting
from postroom.rules.saga_plan import Kind
from postroom.saga.declarations import Declarations
from postroom.saga.steps import (
    TIMEOUT,
    Errors,
    OnTimeout,
    RetiredOptions,
    Sleep,
    Step,
    StepDecorator,
    StepOptions,
    checked_name,
    named,
    positive_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from postroom.rules.backoff import RetryPolicy
    from postroom.rules.saga_plan import Plan

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


class StepDecorators(Generic[D]):
    """Declares steps."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._declarations = Declarations(name)

    @property
    def steps(self) -> Mapping[str, Step[..., Any]]:
        """All that is declared, by name, retired ones included."""
        return self._declarations.steps

    @property
    def plan(self) -> Plan:
        """The plan of an instance that starts now."""
        return self._declarations.plan

    @overload
    def step(self, function: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(self, function: None = None, /, **options: Unpack[StepOptions[D]]) -> StepDecorator: ...

    def step(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Add a step whose effects are in the service's own database: they commit together with its log, once.

        The function takes ``(saga)``, a `SagaContext`; it may be sync or async. What it returns is kept as JSON.
        ``name`` defaults to the function's. A failed attempt is retried by ``retry``, by default twice within a second;
        an attempt that takes longer than ``timeout`` seconds has failed. ``permanent`` lists exceptions that are not
        retried. ``when(data)`` says whether the step runs at all. Neighbours of one ``group`` run at the same time.
        Once a step with ``pivot=True`` is done, the saga only goes forward. Raises `InvalidSetting`.
        """
        return self._decorator(Kind.STEP, function, options)

    @overload
    def call(self, function: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def call(self, function: None = None, /, **options: Unpack[StepOptions[D]]) -> StepDecorator: ...

    def call(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Add a step whose effects are elsewhere, such as a request to another service; options as for `step`.

        No transaction is open while it runs. It may happen more than once, so pass ``saga.key`` or ``saga.headers``
        along, by which the other side recognises a repetition.
        """
        return self._decorator(Kind.CALL, function, options)

    def wait(
        self,
        event: str,
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "compensate",
        name: str | None = None,
        retry: RetryPolicy | None = None,
        permanent: Errors = (),
        when: Callable[[D], bool] | None = None,
        pivot: bool = False,
    ) -> StepDecorator:
        """Wait for an event, which `signal` or `postroom.saga.reply` brings, and may have brought before.

        The function takes ``(saga, event)`` and runs as a step. If no event has come after ``timeout`` seconds, the
        saga is undone, or with ``on_timeout="continue"`` the function gets None.
        """
        if on_timeout not in {"compensate", "continue"}:
            raise InvalidSetting(f"on_timeout = {on_timeout!r} is not valid: give 'compensate' or 'continue'")
        waits_for = checked_name("event", event, "")
        limit = None if timeout is None else positive_seconds(f"the timeout of the wait for {event!r}", timeout)

        options = {
            "name": name,
            "retry": retry,
            "permanent": permanent,
            "when": when,
            "pivot": pivot,
            "event": waits_for,
            "wait_timeout": limit,
            "on_timeout": on_timeout,
        }
        decorator: StepDecorator = self._decorator(Kind.WAIT, None, options)
        return decorator

    def sleep(
        self,
        name: str,
        *,
        seconds: float | None = None,
        until: Callable[[D], datetime] | None = None,
        when: Callable[[D], bool] | None = None,
        retired: bool = False,
    ) -> Sleep:
        """Sleep for so many seconds, or until the time that a function of the data returns.

        As a decorator, it adds a function that runs as a step when the saga wakes.
        """
        return self._declarations.add(Sleep(name, seconds=seconds, until=until, when=when, retired=retired))

    @overload
    def retired(self, function: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def retired(self, function: None = None, /, **options: Unpack[RetiredOptions[D]]) -> StepDecorator: ...

    def retired(  # noqa: PLR0913 - what a step could be, all by name
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        kind: str = "step",
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float = TIMEOUT,
        permanent: Errors = (),
        when: Callable[[D], bool] | None = None,
        wait_timeout: float | None = None,
        on_timeout: OnTimeout = "compensate",
    ) -> Any:
        """Keep a function for instances that began while it was a step; new ones do not have it.

        ``kind`` is what it was: step, call or wait; for a sleep, use ``sleep(…, retired=True)``.
        """
        if kind not in {Kind.STEP, Kind.CALL, Kind.WAIT}:
            raise InvalidSetting(
                f"kind = {kind!r} is not valid: give step, call or wait; for a sleep, retired=True there"
            )
        options = {
            "name": name,
            "retry": retry,
            "timeout": timeout,
            "permanent": permanent,
            "when": when,
            "wait_timeout": wait_timeout,
            "on_timeout": on_timeout,
            "retired": True,
        }
        return self._decorator(Kind(kind), function, options)

    def _decorator(self, kind: Kind, function: Callable[..., Any] | None, options: dict[str, Any]) -> Any:
        def register(given: Callable[..., Any]) -> Step[..., Any]:
            others = {**options}
            name = _name(given, others.pop("name", None))
            return self._declarations.add(Step(given, name, kind, **others))

        return register if function is None else register(function)


def _name(function: Any, given: str | None) -> str:
    if given is not None:
        return given
    found = getattr(function, "__name__", None)
    if isinstance(found, str):
        return found
    raise InvalidSetting(f"{named(function)} has no name: give one with name=…")
