"""Rounds: calls at the same time, each within its time, in threads or in tasks."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from postroom.twophase.rounds import Answer, Call, Round, Rounds, adrive, drive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONG = 30.0


def call(make: Callable[[], Any], *, give_up: Callable[[], None] = lambda: None, here: bool = False) -> Call:
    return Call("bank", make, give_up, here)


def once(*calls: Call, seconds: float = LONG) -> Rounds[Sequence[Answer]]:
    """A protocol of one round, which returns its answers."""
    return (yield Round(calls, seconds))


def both(protocol: Callable[[], Rounds[Any]]) -> list[Any]:
    """What it returns in threads, and in tasks."""
    return [drive(protocol()), asyncio.run(adrive(protocol()))]


def fail() -> None:
    raise ValueError("no")


def test_each_call_has_its_own_answer_in_the_calls_order() -> None:
    for answers in both(lambda: once(call(lambda: 1), call(fail), call(lambda: 3))):
        assert [answer.value for answer in answers] == [1, None, 3]
        assert [type(answer.error) for answer in answers] == [type(None), ValueError, type(None)]


def test_calls_are_made_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    answers = drive(once(*(call(lambda: meeting.wait(LONG)) for _ in range(3))))
    assert sorted(answer.value for answer in answers) == [0, 1, 2]

    async def met() -> Sequence[Answer]:
        here = asyncio.Barrier(3)
        return await adrive(once(*(call(here.wait) for _ in range(3))))

    assert sorted(answer.value for answer in asyncio.run(met())) == [0, 1, 2]


def test_a_call_out_of_time_is_given_up_and_the_others_are_answered() -> None:
    free = threading.Event()
    hanging = call(lambda: free.wait(LONG), give_up=free.set)
    slow, quick = drive(once(hanging, call(lambda: "quick"), seconds=0.05))
    assert (type(slow.error), quick.value, free.is_set()) == (TimeoutError, "quick", True)

    given_up: list[str] = []
    sleeping = call(lambda: asyncio.sleep(LONG), give_up=lambda: given_up.append("bank"))
    slow, quick = asyncio.run(adrive(once(sleeping, call(lambda: "quick"), seconds=0.05)))
    assert (type(slow.error), quick.value, given_up) == (TimeoutError, "quick", ["bank"])


def test_what_is_bound_to_a_thread_is_called_in_the_callers() -> None:
    here, elsewhere = drive(once(call(threading.get_ident, here=True), call(threading.get_ident)))
    assert here.value == threading.get_ident() != elsewhere.value


def test_calls_see_the_callers_context() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    trace.set("mine")
    assert [answers[0].value for answers in both(lambda: once(call(trace.get)))] == ["mine", "mine"]


def test_a_child_process_makes_its_calls_in_threads_of_its_own() -> None:
    drive(once(call(lambda: None), call(lambda: None)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads: that is what it is about
        child = os.fork()
    if not child:
        (answer,) = drive(once(call(lambda: 7), seconds=5))
        os._exit(answer.value or 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_interruption_reaches_the_protocol_which_undoes_what_it_must() -> None:
    undone: list[str] = []

    def protocol() -> Rounds[None]:
        try:
            yield Round([call(interrupt, here=True)], LONG)
        except KeyboardInterrupt:
            yield Round([call(lambda: undone.append("bank"))], LONG)
            raise

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(protocol())
    assert undone == ["bank"]


async def test_a_cancelled_caller_waits_for_the_end_of_the_protocol() -> None:
    done: list[str] = []
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        begun.set()
        await may_go_on.wait()

    def protocol() -> Rounds[None]:
        yield Round([call(first)], LONG)
        yield Round([call(lambda: done.append("committed"))], LONG)

    task = asyncio.create_task(adrive(protocol()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["committed"]


def test_threads_are_kept_for_the_next_round() -> None:
    def idents() -> set[int]:
        return {answer.value for answer in drive(once(*(call(_ident) for _ in range(2))))}

    first = idents()
    deadline = time.monotonic() + LONG
    while idents() != first:
        assert time.monotonic() < deadline, "each round makes new threads"


def _ident() -> int:
    time.sleep(0.01)  # so that two calls need two threads
    return threading.get_ident()
