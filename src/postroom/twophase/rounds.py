"""Rounds of calls: what a protocol wants of others next, all at once, each within its time.

A protocol is a generator that yields rounds and receives an answer for each call. It is written once, and driven in
threads (`drive`) or in tasks (`adrive`).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from postroom.runtime import time_limits

T = TypeVar("T")

GRACE = 1.0
"""Seconds for a call that was given up to end."""


class Call(NamedTuple):
    """One call of a round."""

    who: str
    """The participant, for errors."""
    make: Callable[[], Any]
    """Returns the result; for tasks, an awaitable of it."""
    give_up: Callable[[], None]
    """Called when its time is over, from any thread: closes the connection, so that the call ends."""
    here: bool = False
    """It must be made in the thread of the caller, which cannot give it up."""


class Answer(NamedTuple):
    """What became of a call."""

    value: Any = None
    error: Exception | None = None


class Round(NamedTuple):
    """Calls to make at the same time, and how long they may take."""

    calls: Sequence[Call]
    seconds: float


Rounds = Generator[Round, Sequence[Answer], T]


def drive(rounds: Rounds[T]) -> T:
    """Drive a protocol to its end, each call in a thread."""
    return _drive(rounds, _in_threads)


def _drive(rounds: Rounds[T], make_calls: Callable[[Round], Sequence[Answer]]) -> T:
    try:
        wanted = next(rounds)
        while True:
            try:
                answers = make_calls(wanted)
            except BaseException as interruption:  # noqa: BLE001 - the protocol decides what to undo
                wanted = rounds.throw(interruption)
            else:
                wanted = rounds.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


async def adrive(rounds: Rounds[T], *, interruptible: bool = False) -> T:
    """Drive a protocol to its end, each call in a task.

    A caller that is cancelled waits for the end too, which the calls' time limits bound: half a protocol would leave
    participants waiting. Then it is cancelled. If the protocol is `interruptible`, or the caller is cancelled again, it
    hears of that as of ctrl-C, once.
    """
    task = asyncio.create_task(_adrive(rounds))
    patience = 0 if interruptible else 1
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if patience == 0:
                task.cancel()
            patience -= 1
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # asyncio logs one that nobody retrieves
    raise cancelled


async def _adrive(rounds: Rounds[T]) -> T:
    try:
        wanted = next(rounds)
        while True:
            try:
                answers = await _in_tasks(wanted)
            except BaseException as interruption:  # noqa: BLE001 - the protocol decides what to undo
                wanted = rounds.throw(interruption)
            else:
                wanted = rounds.send(answers)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


async def _in_tasks(wanted: Round) -> list[Answer]:
    if not wanted.calls:
        return []
    tasks = [time_limits.begin(_made(call.make)) for call in wanted.calls]
    late: set[asyncio.Task[Any]] = set()
    try:
        _, late = await asyncio.wait(tasks, timeout=wanted.seconds)
    except BaseException:
        late = {task for task in tasks if not task.done() or task.cancelled()}
        raise
    finally:
        if late:
            await _give_up(wanted.calls, tasks, late)
    return [
        Answer(error=TimeoutError(f"no answer within {wanted.seconds:g} s")) if task in late else _answer(task, call)
        for task, call in zip(tasks, wanted.calls, strict=True)
    ]


async def _give_up(
    calls: Sequence[Call], tasks: Sequence[asyncio.Task[Any]], late: Collection[asyncio.Task[Any]]
) -> None:
    try:
        await time_limits.end(late)
    finally:
        for call, task in zip(calls, tasks, strict=True):
            if task in late:
                call.give_up()


def _answer(task: asyncio.Task[Any], call: Call) -> Answer:
    try:
        return Answer(task.result())
    except Exception as error:  # noqa: BLE001 - the protocol decides what it means
        if isinstance(error, TimeoutError):
            call.give_up()
        return Answer(error=error)
    except asyncio.CancelledError as error:  # others have cancelled a user's function
        call.give_up()
        return _no_answer(error)
    except BaseException:
        call.give_up()
        raise


async def _made(make: Callable[[], Any]) -> Any:
    result = make()
    return await result if inspect.isawaitable(result) else result


def _no_answer(interruption: BaseException) -> Answer:
    error = RuntimeError(f"{type(interruption).__name__} ended the call")
    error.__cause__ = interruption
    return Answer(error=error)


def _in_threads(wanted: Round) -> list[Answer]:
    until = time.monotonic() + wanted.seconds
    jobs = [_Job(call) for call in wanted.calls]
    try:
        for job in jobs:
            if not job.call.here:
                _THREADS.run(job)
        for job in jobs:
            if job.call.here:
                job.run()
        return [job.answer_by(until) for job in jobs]
    except BaseException:  # ctrl-C: what comes next must not share a connection with a call that still runs
        for job in jobs:
            job.give_up()
        raise


class _Job:
    """One call in a thread."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._context = contextvars.copy_context()
        self._done = False
        self._waiting = threading.Lock()  # an Event is several times as slow, and this is most of what a call costs
        self._waiting.acquire()
        self._answer = Answer()

    def run(self) -> None:
        try:
            self._answer = Answer(self._context.run(self.call.make))
        except Exception as error:  # noqa: BLE001 - the protocol decides what it means
            self._answer = Answer(error=error)
        except BaseException as error:  # such as SystemExit of a user's function
            self._answer = _no_answer(error)
            if self.call.here:
                raise
        finally:
            self._done = True
            self._waiting.release()

    def answer_by(self, until: float) -> Answer:
        if self._waiting.acquire(timeout=max(0.0, until - time.monotonic())):
            return self._answer
        self.give_up()
        self._waiting.acquire(timeout=GRACE)
        return Answer(error=TimeoutError("no answer in time"))

    def give_up(self) -> None:
        """Have it end if it still runs."""
        if not self._done:
            self.call.give_up()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a sync function in a thread of its own: asyncio has few, and one that hangs would keep others from them."""
    job = _AwaitedJob(Call("", partial(function, *args), lambda: None))
    _THREADS.run(job)
    value, error = await job.answer
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]  # as the function returned it


class _AwaitedJob(_Job):
    """One call in a thread, whose answer is awaited."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer] = self._loop.create_future()

    def run(self) -> None:
        super().run()
        with suppress(RuntimeError):  # the loop may have been closed
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if not self.answer.done():
            self.answer.set_result(self._answer)


class _Threads:
    """Threads, kept for the next round. They never keep the process alive; one that hangs is left behind."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[_Job]] = deque()
        os.register_at_fork(after_in_child=self._idle.clear)  # a child process has none of them

    def run(self, job: _Job) -> None:
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name="postroom-twophase", daemon=True).start()
        jobs.put(job)

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            jobs.get().run()
            self._idle.append(jobs)


_THREADS = _Threads()
