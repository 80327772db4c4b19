"""Calls of users' functions: sync ones in threads, async ones in tasks, all within their time, and accounted for.

A function that hangs keeps its own thread or task and blocks nobody else, and what is late commits nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from postroom.errors import PostroomError
from postroom.runtime.threads import NoFreeThread, Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator

R = TypeVar("R")
C = TypeVar("C", bound="Call")

CALLS = "postroom-call"
"""How threads and tasks that call users' functions are named."""
STALE = 3
"""How many lost connections in a row are put down to a pool that keeps some from before a server's restart."""
GRACE = 1.0
"""Seconds for a cancelled call to roll back."""
STUCK = (
    "{} calls of sync {functions} have not ended in time, and no thread is free: no {work} is tried until one ends; "
    "give what the {functions} wait for a time limit"
)
STUCK_TASKS = (
    "{} calls of async {functions} have not ended in time, and were cancelled in vain: no {work} is tried until one "
    "ends; let asyncio.CancelledError out of the {functions}"
)


class CannotCall(PostroomError):
    """No function can be called now, through no fault of its own: the database is away, or calls that hang occupy all.

    If one was called, nothing of it was committed, unless the answer to its commit got lost.
    """


class StillRunning(Exception):
    """An earlier call with the same subject has not ended although its time is up. Another one would only wait."""


class CallFailed(Exception):
    """A function raised an exit or a cancellation, or returned after its transaction had been undone."""


class Call:
    """One call of a user's function with what goes around it, such as a transaction; and how far it has come."""

    def __init__(self, *, is_async: bool, timeout: float, subjects: frozenset[Hashable]) -> None:
        """`subjects`: what it works on. No other call with one of them begins while this one goes on too long."""
        self.is_async = is_async
        self.timeout = timeout
        self.subjects = subjects
        self.is_late = False
        """Whether its time is up: then nothing more is called, and nothing written."""
        self.has_ended = False
        """Whether nothing of it goes on any more."""
        self.is_in_function = False
        """Whether the function has been called and has not returned: what is raised then comes from it."""
        self.has_returned = False
        """Whether the function has been called and has returned."""

    def again(self) -> Self:
        """The same call once more, after this one has failed."""
        raise NotImplementedError

    @property
    def may_be_repeated(self) -> bool:
        """Whether it is called again at once if it has lost its connection."""
        return not self.is_in_function

    @contextmanager
    def in_function(self) -> Iterator[None]:
        """Wrap the user's own code. If that raises, `is_in_function` stays true."""
        self.is_in_function = True
        yield
        self.is_in_function = False
        self.has_returned = True

    def check_time(self) -> None:
        """Raise `TimeoutError` if the call is late, so that its transaction rolls back."""
        if self.is_late:
            raise TimeoutError


@dataclass(frozen=True, slots=True)
class Words:
    """How reports name what is called, and what waits for it."""

    functions: str
    work: str


class Calls:
    """Makes calls, and keeps account of those that do not end in time. Used from one event loop at a time."""

    def __init__(
        self,
        words: Words,
        threads: int,
        *,
        database_answers: Callable[[], Awaitable[bool]],
        is_lost_connection: Callable[[BaseException], bool],
        report: Callable[[str | None], None],
    ) -> None:
        """`report` receives why no function can be called, and None when they can be called again."""
        self._words = words
        self._threads = Threads(threads, CALLS)
        self._database_answers = database_answers
        self._is_lost_connection = is_lost_connection
        self._report = report
        self._stuck: dict[bool, str] = {}
        """Why no function can be called, by whether they are async."""
        self._late: set[Call] = set()
        """Calls that have not ended in time."""
        self._late_tasks: set[asyncio.Task[Any]] = set()
        """Calls of async functions that were cancelled and go on."""
        self.hung = asyncio.Event()
        """Set when a call was refused because calls that do not end in time occupy everything."""

    async def run(self, call: C, blocking: Callable[[C], R], waiting: Callable[[C], Awaitable[R]]) -> R:
        """Make a call with `blocking` in a thread, or with `waiting` in a task; returns or raises what that does.

        Raises `TimeoutError` when its time is up. A thread cannot be stopped: one that takes too long must write
        nothing when it ends at last, and so both functions ask `check_time` before they commit.

        If a pooled connection proves to be stale before the user's function is called or after it has returned, the
        call is repeated at once, unless `may_be_repeated` says no. If the database is away or no thread is free, raises
        `CannotCall`. A connection that the function itself loses may be to another database: that is raised as it is,
        unless ours is away too. If an earlier call with one of its subjects goes on too long, raises `StillRunning`.
        """
        if self._late and any(call.subjects & late.subjects for late in self._late):
            raise StillRunning
        lost: Exception | None = None
        for _ in range(STALE):
            call = call if lost is None else call.again()
            try:
                return await self._run(call, blocking, waiting)
            except Exception as error:
                if not self._is_lost_connection(error):
                    raise
                lost = error
                if not call.may_be_repeated:
                    break
        if not await self._database_answers():
            raise CannotCall(f"the database of the {self._words.functions} cannot be reached") from lost
        if lost is not None and not call.may_be_repeated:
            raise lost
        return await self._run(call.again(), blocking, waiting)  # the database may have been away until now

    async def in_thread(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function of ours in one of the threads. Raises `NoFreeThread`."""
        result: R = await self._threads.call(function, *args)
        return result

    @property
    def stuck(self) -> str | None:
        """Why no function, or none of a kind, can be called."""
        return next(iter(self._stuck.values()), None)

    @property
    def all_hung(self) -> bool:
        """Whether calls that do not end in time occupy everything that functions could run in."""
        return max(len(self._late_tasks), self._threads.abandoned) >= self._threads.number

    def close(self) -> None:
        """End the threads that are idle."""
        self._threads.close()

    async def _run(self, call: C, blocking: Callable[[C], R], waiting: Callable[[C], Awaitable[R]]) -> R:
        try:
            result = await (self._in_task(call, waiting) if call.is_async else self._in_thread(call, blocking))
        except CannotCall:
            raise
        except BaseException as error:
            self._note(call, None)
            if not call.has_ended:
                call.is_late = True
                self._late.add(call)
            task = asyncio.current_task()
            if isinstance(error, Exception | KeyboardInterrupt) or (task is not None and task.cancelling()):
                raise
            raise _failed(error) from error
        self._note(call, None)
        return result

    async def _in_task(self, call: C, waiting: Callable[[C], Awaitable[R]]) -> R:
        """Run in a task of its own: a function may ignore its cancellation, and nobody must wait for it then."""
        if len(self._late_tasks) >= self._threads.number:
            raise self._cannot_call(call, STUCK_TASKS, len(self._late_tasks))
        task = asyncio.create_task(_without_exits(waiting(call)), name=CALLS)
        is_late = False
        try:
            is_late = not await _done_in_time(task, call.timeout)
        finally:
            if task.done():
                self._ended(call)
            else:
                task.add_done_callback(lambda _: self._ended(call))
                await self._cancel(task)
        if not task.done():
            raise TimeoutError
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if is_late:
                raise TimeoutError from error
            raise _failed(error) from error

    async def _cancel(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE)
        finally:
            if not task.done():
                self._late_tasks.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._late_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else asks for it

    async def _in_thread(self, call: C, blocking: Callable[[C], R]) -> R:
        def in_time() -> R:
            call.check_time()  # the machine may be so slow that its time is up before it begins
            return blocking(call)

        try:
            async with asyncio.timeout(call.timeout):
                result: R = await self._threads.call(in_time, ended=lambda: self._ended(call))
        except NoFreeThread:
            raise self._cannot_call(call, STUCK, self._threads.abandoned) from None
        except TimeoutError:
            if call.has_ended:
                raise
        else:
            return result
        raise TimeoutError  # a new one: asyncio raised the other, and no line of the function

    def _ended(self, call: Call) -> None:
        call.has_ended = True
        self._late.discard(call)

    def _cannot_call(self, call: Call, text: str, number: int) -> CannotCall:
        reason = text.format(number, functions=self._words.functions, work=self._words.work)
        self._note(call, reason)
        if self.all_hung:
            self.hung.set()
        return CannotCall(reason)

    def _note(self, call: Call, stuck: str | None) -> None:
        was = self.stuck
        if stuck is None:
            self._stuck.pop(call.is_async, None)
        else:
            self._stuck[call.is_async] = stuck
        if (was is None) != (self.stuck is None):
            self._report(self.stuck)


async def _done_in_time(task: asyncio.Task[Any], timeout: float) -> bool:  # noqa: ASYNC109 - the task goes on
    """Wait for a task, and tell whether it has ended: `asyncio.wait`, at half its price for a single task."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_task: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(timeout, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(wake)
    return task.done()


async def _without_exits(waiting: Awaitable[R]) -> R:
    try:
        return await waiting
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(error) from error  # an exit would end the event loop


def call_at_once(function: Callable[..., R], *args: Any) -> R:
    """Call a short sync function in the event loop itself, which what it raises must not end."""
    try:
        return function(*args)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(error) from error


def _failed(error: BaseException) -> CallFailed:
    return CallFailed(f"{type(error).__name__}: {error}".removesuffix(": "))
