"""Calls of users' functions: sync ones in threads, async ones in tasks, all within their time, and accounted for.

A function that hangs keeps its own thread or task and blocks nobody else, and what is late commits nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import PostroomError
from postroom.runtime.shared_timer import SharedTimer
from postroom.runtime.threads import NoFreeThread, Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroom.runtime.call import Call

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
BLOCKED = (
    "a call of one of the {functions} has not ended in time, and the database has one writer at a time: no {work} goes "
    "on until it ends; give what the {functions} wait for a time limit, and restart this process if it does not end"
)


class CannotCall(PostroomError):
    """No function can be called now, through no fault of its own: the database is away, or calls that hang occupy all.

    If one was called, nothing of it was committed, unless the answer to its commit got lost.
    """


class StillRunning(Exception):
    """An earlier call with the same subject has not ended although its time is up. Another one would only wait."""


class CallFailed(Exception):
    """A function raised an exit or a cancellation, or returned after its transaction had been undone."""


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
        self._timer = SharedTimer()
        self.hung = asyncio.Event()
        """Set when a call was refused because calls that do not end in time occupy everything."""

    async def run(
        self,
        call: C,
        blocking: Callable[[C], R],
        waiting: Callable[[C], Awaitable[R]],
        alone: asyncio.Lock | None = None,
    ) -> R:
        """Make a call with `blocking` in a thread, or with `waiting` in a task; returns or raises what that does.

        With a lock, only one call that was given it goes on at a time; waiting for its turn does not use up its time.

        Raises `TimeoutError` when its time is up. A thread cannot be stopped: one that takes too long must write
        nothing when it ends at last, and so both functions ask `check_time` before they commit.

        If a pooled connection proves to be stale before the user's function is called or after it has returned, the
        call is repeated at once, unless `may_be_repeated` says no. If the database is away, accepts no connection or
        no thread is free, raises `CannotCall`. A connection that the function itself loses may be to another database:
        that is raised as it is, unless ours is away too. If an earlier call with one of its subjects goes on too long,
        raises `StillRunning`.
        """
        if self._late and any(call.subjects & late.subjects for late in self._late):
            raise StillRunning
        lost: Exception | None = None
        for _ in range(STALE):
            call = call if lost is None else call.again()
            try:
                return await self._run(call, blocking, waiting, alone)
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
        last = call.again()  # the database may have been away until now
        try:
            return await self._run(last, blocking, waiting, alone)
        except Exception as error:
            if not self._is_lost_connection(error) or last.is_in_function or last.has_returned:
                raise
            raise CannotCall(f"no connection can be opened for the {self._words.functions}: {error}") from error

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

    async def _run(
        self, call: C, blocking: Callable[[C], R], waiting: Callable[[C], Awaitable[R]], alone: asyncio.Lock | None
    ) -> R:
        if alone is not None:
            await alone.acquire()
            call.alone = alone
        try:
            result = await (self._in_task(call, waiting) if call.is_async else self._in_thread(call, blocking))
        except CannotCall:
            _let_others(call)
            raise
        except BaseException as error:
            self._note(call, None)
            if not call.has_ended:
                call.is_late = True
                self._late.add(call)
                if call.alone is not None:
                    self._note(call, BLOCKED.format(functions=self._words.functions, work=self._words.work))
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
        ended = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_carried(waiting(call), ended), name=CALLS)
        is_late = False
        try:
            await self._timer.wait(ended, call.timeout)
            is_late = not task.done()
        finally:
            if task.done():
                self._ended(call)
            else:
                await self._cancel(call, task)
        if not task.done():
            raise TimeoutError
        try:
            return task.result()
        except asyncio.CancelledError as error:
            if is_late:
                raise TimeoutError from error
            raise _failed(error) from error

    async def _cancel(self, call: Call, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(lambda _: self._ended(call))
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
        if call in self._late:
            self._late.discard(call)
            if call.alone is not None:
                self._note(call, None)
        _let_others(call)

    def _cannot_call(self, call: Call, text: str, number: int) -> CannotCall:
        reason = text.format(number, functions=self._words.functions, work=self._words.work)
        self._note(call, reason)
        if self.all_hung:
            self.hung.set()
        return CannotCall(reason)

    def _note(self, call: Call, stuck: str | None) -> None:
        if not self._stuck and stuck is None:
            return
        was = self.stuck
        if stuck is None:
            self._stuck.pop(call.is_async, None)
        else:
            self._stuck[call.is_async] = stuck
        if (was is None) != (self.stuck is None):
            self._report(self.stuck)


def _let_others(call: Call) -> None:
    alone, call.alone = call.alone, None
    if alone is not None:
        alone.release()


async def _carried(waiting: Awaitable[R], ended: asyncio.Future[None]) -> R:
    """Tell when it ends, a turn of the event loop earlier than a callback of the task would."""
    try:
        return await waiting
    except (Exception, KeyboardInterrupt):
        raise
    except asyncio.CancelledError as error:
        # Cursors that its frames hold keep a closed connection to SQLite alive, with its transaction and its lock.
        traceback.clear_frames(error.__traceback__)
        raise
    except BaseException as error:
        raise _failed(error) from error  # an exit would end the event loop
    finally:
        if not ended.done():
            ended.set_result(None)


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
