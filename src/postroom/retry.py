"""Retry any function by a retry policy: `RetryPolicy.run`, `arun`, and the policy as a decorator."""

from __future__ import annotations

import asyncio
import functools
import logging
import random as randomness
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from postroom.errors import InvalidSetting, RetryExhausted
from postroom.rules import backoff
from postroom.runtime.functions import awaited, check_function, check_sync, is_async, name_of, plain_result
from postroom.telemetry.tracebacks import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    ExceptionTypes = type[Exception] | tuple[type[Exception], ...]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("postroom.retry")


@dataclass(frozen=True, slots=True, eq=False)
class RetryPolicy(backoff.RetryPolicy):
    """How long to wait after each failed attempt, and how many attempts to make.

    Relays, consumers and sagas take one as their policy. It also retries any function, with ``policy.run(function,
    *args)`` or as a decorator, ``@policy``. The default is `RetryPolicy.worker()`; `RetryPolicy.consistency()` is for
    calls that somebody waits for. Raises `ValueError` for a value that makes no sense.
    """

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function until it returns, and return what it returned.

        Raises `RetryExhausted` from the last error when no attempt is left. For other than all exceptions, see
        `retrying`.
        """
        return self.retrying().run(function, *args, **kwargs)

    async def arun(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`run` for an async function."""
        return await self.retrying().arun(function, *args, **kwargs)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, sync or async: every call is retried."""
        return self.retrying()(function)

    @overload
    def retrying(self, function: Callable[P, T], /) -> Callable[P, T]: ...

    @overload
    def retrying(
        self,
        /,
        *,
        retry_on: ExceptionTypes = ...,
        sleep: Callable[[float], object] | None = ...,
        random: Callable[[], float] = ...,
    ) -> Retrying: ...

    def retrying(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        retry_on: ExceptionTypes = Exception,
        sleep: Callable[[float], object] | None = None,
        random: Callable[[], float] = randomness.random,
    ) -> Callable[..., Any] | Retrying:
        """Choose what is retried: ``policy.retrying(retry_on=(ConnectionError, TimeoutError)).run(function)``.

        All other exceptions are raised at once. It is also a decorator, with options or without. Tests may replace
        ``sleep``, which gets the seconds, and ``random``, which returns a number from 0 up to 1. Raises
        `InvalidSetting`.
        """
        found = Retrying(self, _exceptions(retry_on), sleep, random)
        return found if function is None else found(function)


@dataclass(frozen=True, slots=True)
class Retrying:
    """A retry policy with what it retries on: `RetryPolicy.retrying` makes it."""

    policy: backoff.RetryPolicy
    retry_on: tuple[type[Exception], ...]
    sleep: Callable[[float], object] | None
    random: Callable[[], float]

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function until it returns, and return what it returned.

        Raises `RetryExhausted` from the last error when no attempt is left; an exception that is not in ``retry_on``
        at once, as it is.
        """
        check_function(function, "what to retry")
        check_sync(function, _USE_ARUN)
        attempts = 0
        while True:
            try:
                result = function(*args, **kwargs)
            except self.retry_on as error:
                attempts += 1
                delay = self._delay(function, attempts, error)
            else:
                return cast("T", plain_result(result, function, _USE_ARUN))
            plain_result((self.sleep or time.sleep)(delay), self.sleep or time.sleep, "give a sleep that is not async")

    async def arun(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`run` for an async function."""
        check_function(function, "what to retry")
        attempts = 0
        while True:
            try:
                return cast("T", await awaited(function(*args, **kwargs)))
            except self.retry_on as error:
                attempts += 1
                delay = self._delay(function, attempts, error)
            await awaited((self.sleep or asyncio.sleep)(delay))

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function, sync or async: every call is retried."""
        check_function(function, "what to retry")
        if is_async(function):
            async_function = cast("Callable[P, Awaitable[Any]]", function)

            @functools.wraps(function)
            async def retried_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await self.arun(async_function, *args, **kwargs)

            return cast("Callable[P, T]", retried_async)

        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(function, *args, **kwargs)

        return retried

    def _delay(self, function: Callable[..., Any], attempts: int, error: Exception) -> float:
        """Seconds until the next attempt. Raises `RetryExhausted` if there is none."""
        name = name_of(function)
        if self.policy.exhausted(attempts):
            times = "at the only attempt" if attempts == 1 else f"{attempts} times"
            raise RetryExhausted(f"{name} failed {times}, last with {type(error).__name__}", attempts) from error
        delay = self.policy.delay(attempts, self.random())
        most = self.policy.max_attempts
        _log.warning("%s failed, attempt %d of %d, next in %.3g s: %s", name, attempts, most, delay, shown(error))
        return delay


_USE_ARUN = "use `await policy.arun(…)`, or decorate the async function itself"


def _exceptions(given: object) -> tuple[type[Exception], ...]:
    """The exception classes. Not those that end a program or a task, which are no failures of the function."""
    found = given if isinstance(given, tuple) else (given,)
    for one in found:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise InvalidSetting(
                f"retry_on has {one!r}: give subclasses of Exception, such as retry_on=(ConnectionError, TimeoutError)"
            )
    return found
