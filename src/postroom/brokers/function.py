"""A Python function as a broker: sync or async, called with one message or with a batch."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from postroom.brokers.port import (
    ACCEPTED,
    NOT_SENT,
    Accepted,
    Capabilities,
    NotSent,
    Outcome,
    Refused,
    TargetUnavailable,
    Unreached,
)
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier, Reason, reason_code, with_place
from postroom.runtime.functions import is_async, load_object
from postroom.runtime.threads import Threads
from postroom.runtime.time_limits import TimeLimits
from postroom.telemetry.events import Hook, Raised
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from postroom.message import Message

Function = Callable[[Any], Any]
F = TypeVar("F", bound=Function)

STOPS = "__postroom_stops_at_failure__"

NO_OUTCOME = Refused(Reason.INTERNAL_ERROR, "the function gave no outcome")
START_SECONDS = 0.5
"""Seconds of a publish in which calls may start. Each call has the whole timeout, so the publish takes little more."""


class _Time(NamedTuple):
    """Time limits of a publish: seconds for each call, and when, by the loop's clock, no more calls may start."""

    one_call: float
    start_before: float


class FunctionBroker:
    """Calls a function with each message, or, if its parameter is called ``messages``, with a list of them.

    The function may return nothing or a receipt; ``{"status": "ok", …}`` or ``{"status": …, "reason_code": …}``; for a
    list, nothing or a list of these. Any exception is a failed attempt, except `ConnectionError` and
    `BrokerUnavailable`: they mean that the other side cannot be reached, which does not count as an attempt. If a call
    with a list fails as a whole, fewer are sent together until it is known which of them is at fault. A sync
    function runs in a thread; a timeout does not stop it, and leaves the thread busy. Messages whose turn does not
    come soon are not sent, because a thousand slow calls would take longer than the timeout.
    """

    def __init__(self, function: Function, concurrency: int = 4, classifier: Classifier = DEFAULT_CLASSIFIER) -> None:
        self.name = f"python:{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', 'function')}"
        self._classifier = classifier
        self.raised: Hook | None = None
        """Called with what the function raises."""
        self._batches = takes_a_batch(function)
        self._stops: bool = getattr(function, STOPS, False)
        self.capabilities = Capabilities(ordered_prefix=self._stops)
        self._concurrency = concurrency
        self._places = asyncio.Semaphore(concurrency)
        self._threads = Threads(concurrency, "postroom-broker")
        self._limits = TimeLimits()
        self._is_stuck = False
        how = self._await if is_async(function) else self._thread
        self._call: Callable[[Any], Awaitable[Any]] = partial(how, function)

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Call the function, without creating a task for each message."""
        time = _Time(timeout, asyncio.get_running_loop().time() + START_SECONDS)
        if self._batches:
            return await self._publish_batch(list(messages), time)
        outcomes: list[Outcome] = [NO_OUTCOME] * len(messages)
        work = iter(enumerate(messages))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(messages), self._concurrency)):
                group.create_task(self._publish_each(work, outcomes, time))
        return outcomes

    async def close(self) -> None:
        """End the idle threads."""
        self._threads.close()

    async def _publish_each(self, work: Iterator[tuple[int, Message]], outcomes: list[Outcome], time: _Time) -> None:
        for index, message in work:
            outcomes[index] = await self._in_turn(message, time, outcome_of)

    async def _publish_batch(self, messages: list[Message], time: _Time) -> Sequence[Outcome]:
        result = await self._in_turn(messages, time, partial(outcomes_of, count=len(messages), stops=self._stops))
        return result if isinstance(result, list) else [result] * len(messages)

    async def _in_turn(self, argument: Any, time: _Time, understand: Callable[[Any], Any]) -> Any:
        if asyncio.get_running_loop().time() >= time.start_before:
            return self._no_place()
        if self._places.locked():
            try:
                async with asyncio.timeout_at(time.start_before):
                    await self._places.acquire()
            except TimeoutError:
                return self._no_place()
        else:
            await self._places.acquire()  # at once, as nearly always: a timer for each message would take longer
        self._is_stuck = False
        return await self._attempt(argument, time.one_call, understand)

    def _no_place(self) -> Unreached | NotSent:
        """All places are taken: by calls that are running or, if none of them will end, by calls that hang."""
        threads = self._threads
        if threads.abandoned < threads.number:
            return NOT_SENT
        reason = (
            f"all {threads.number} threads are busy with calls of the function that did not end in time: no message "
            "is tried until one of them ends; set a time limit on what the function waits for"
        )
        if not self._is_stuck:
            self._is_stuck = True
            logging.getLogger("postroom").error("%s: %s", self.name, reason)
        return Unreached(reason)

    async def _attempt(self, argument: Any, seconds: float, understand: Callable[[Any], Any]) -> Any:
        try:
            with self._limits.limit(seconds):
                result = await self._call(argument)
            return understand(result)
        except TimeoutError as error:
            self._tell(argument, error)
            return Refused(Reason.TIMEOUT, f"no answer within {seconds:g} s", whole_call=self._batches)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # we are being cancelled, not the function
            return self._failed(argument, error)

    def _failed(self, argument: Any, error: BaseException) -> Unreached | Refused:
        if isinstance(error, ConnectionError | BrokerUnavailable):
            return Unreached(str(error) or type(error).__name__)
        self._tell(argument, error)
        if isinstance(error, Exception):
            return Refused(reason_code(error, self._classifier), _error_text(error), whole_call=self._batches)
        return Refused(Reason.INTERNAL_ERROR, _error_text(error), whole_call=self._batches)

    def _tell(self, argument: Any, error: BaseException) -> None:
        if self.raised is not None:
            self.raised(Raised(self.name, argument if self._batches else [argument], error))

    async def _thread(self, function: Function, argument: Any) -> Any:
        """Keep the place for as long as the thread is busy, which a time limit does not change."""
        return await self._threads.call(function, argument, ended=self._places.release)

    async def _await(self, function: Function, argument: Any) -> Any:
        try:
            return await function(argument)
        finally:
            self._places.release()


def stops_at_failure(function: F) -> F:
    """Declare that a function for batches delivers in their order, and nothing after a message that it could not.

    Then it is called with all messages of a key at once. Otherwise each is confirmed before the next one is sent,
    because the function might have sent the next one although this one failed. It returns what it has results for: up
    to the first failure. Raises `InvalidSetting` if the function takes one message.
    """
    if not takes_a_batch(function):
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidSetting(
            f"{name} takes one message at a time, which is always in order: call its parameter messages"
        )
    setattr(function, STOPS, True)
    return function


def load(address: str) -> Function:
    """The function that ``module:function`` names. Raises `InvalidSetting`."""
    shown = f"python:{address}"
    found: Function = load_object(address, shown, "a function: write python:module:function")
    if not callable(found):
        raise InvalidSetting(f"{shown} is a {type(found).__name__}, not a function")
    return found


def outcome_of(result: Any) -> Outcome:
    """Interpret a function's return value for one message."""
    match result:
        case None:
            return ACCEPTED
        case Accepted() | Refused() | Unreached() | TargetUnavailable() | NotSent():
            return result
        case {"status": "ok", **rest}:
            return Accepted(_text(rest) if rest else None)
        case {"status": _, **rest}:
            return Refused(str(rest.get("reason_code") or Reason.INTERNAL_ERROR), str(rest.get("message", "")))
        case _:
            return Accepted(_text(result))


def outcomes_of(result: Any, count: int, *, stops: bool = False) -> list[Outcome]:
    """Interpret a function's return value for a batch. One that `stops` at a failure says nothing of what follows."""
    if result is None:
        return [ACCEPTED] * count
    if isinstance(result, list | tuple):
        outcomes = [outcome_of(one) for one in result]
        if stops and outcomes and not isinstance(outcomes[-1], Accepted):
            outcomes += [NOT_SENT] * (count - len(outcomes))
        if len(outcomes) == count:
            return outcomes
        problem = f"the function returned {len(result)} results for {count} messages: return one for each, or nothing"
        return [Refused(Reason.INTERNAL_ERROR, problem, whole_call=True)] * count
    outcome = outcome_of(result)
    if isinstance(outcome, Refused):
        outcome = msgspec.structs.replace(outcome, whole_call=True)
    return [outcome] * count


def _text(value: Any) -> str:
    """A receipt as text. What has no JSON form is shown as Python does: the message is sent all the same."""
    if not isinstance(value, Mapping):
        return str(value)
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):  # invalid keys, lone surrogates, circular references
        return ascii(value)


def _error_text(error: BaseException) -> str:
    """An error's class, text and place: many errors, such as KeyError, say little by their text alone."""
    return with_place(f"{type(error).__name__}: {error}".removesuffix(": "), raised_at(error))


def takes_a_batch(function: Function) -> bool:
    """Whether the function's parameter is called ``messages``.

    Raises `InvalidSetting` if it cannot be called with one argument, or is a generator, which a call would not run.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{name} is a generator: a call would not run it, so nothing would be sent: use no yield")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some builtin functions have no signature
        return False
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidSetting(
            f"{name}{signature} cannot be called with one argument: it must take a message, or a list called messages"
        ) from None
    return next(iter(signature.parameters)) == "messages"
