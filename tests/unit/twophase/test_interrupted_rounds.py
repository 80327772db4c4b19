"""Rounds of calls: what ends one in another way than by its answer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from postroom.twophase.rounds import Answer, Call, Round, Rounds, adrive, drive, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0


def asking(make: Callable[[], Any], given_up: list[str]) -> Rounds[Answer]:
    (answer,) = yield Round([Call("bank", make, lambda: given_up.append("bank"))], PATIENCE)
    return answer


@pytest.mark.parametrize("interruption", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_what_ends_a_thread_is_no_answer(interruption: BaseException) -> None:
    def leave() -> None:
        raise interruption

    answer = drive(asking(leave, []))
    assert isinstance(answer.error, RuntimeError)
    assert answer.error.__cause__ is interruption


def test_a_function_that_others_cancel_is_no_answer_and_cancels_nobody_else() -> None:
    async def leave() -> None:
        raise asyncio.CancelledError

    given_up: list[str] = []
    answer = asyncio.run(adrive(asking(leave, given_up)))
    assert isinstance(answer.error, RuntimeError)
    assert given_up == ["bank"]


class Protocol:
    """Two rounds, and one that undoes what it did if it is interrupted."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

    def rounds(self) -> Rounds[None]:
        try:
            yield self._round("first")
            yield self._round("second")
        except BaseException:
            self.go_on.set()
            yield self._round("undo")
            raise

    def _round(self, name: str) -> Round:
        return Round([Call(name, lambda: self._work(name), lambda: self.done.append(f"{name} given up"))], PATIENCE)

    async def _work(self, name: str) -> None:
        self.started.set()
        await self.go_on.wait()
        self.done.append(name)


@pytest.mark.parametrize(
    ("cancels", "interruptible", "done"),
    [
        (1, False, ["first", "second"]),
        (2, False, ["first given up", "undo"]),
        (1, True, ["first given up", "undo"]),
        (4, True, ["first given up", "undo"]),
    ],
)
def test_a_caller_that_is_cancelled_leaves_no_half_of_a_protocol(
    *,
    cancels: int,
    interruptible: bool,
    done: list[str],
) -> None:
    async def main() -> list[str]:
        protocol = Protocol()
        caller = asyncio.create_task(adrive(protocol.rounds(), interruptible=interruptible))
        await protocol.started.wait()
        for _ in range(cancels):
            caller.cancel()
            await asyncio.sleep(0)
        if done[0] == "first":
            protocol.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        return protocol.done

    assert asyncio.run(main()) == done


def test_a_protocol_is_undone_when_its_event_loop_ends() -> None:
    protocol: list[Protocol] = []

    async def main() -> None:
        protocol.append(Protocol())
        task = asyncio.create_task(adrive(protocol[0].rounds()))
        await protocol[0].started.wait()
        assert not task.done()

    asyncio.run(main())
    assert protocol[0].done == ["first given up", "undo"]


def test_functions_that_hang_leave_the_threads_of_asyncio_to_others() -> None:
    free = threading.Event()

    async def main() -> list[object]:
        hanging = [asyncio.create_task(in_thread(free.wait, PATIENCE)) for _ in range(40)]  # asyncio has up to 32
        await asyncio.sleep(0)
        address = await asyncio.wait_for(asyncio.to_thread(str, "found"), PATIENCE / 3)
        free.set()
        return [address, *await asyncio.gather(*hanging)]

    assert asyncio.run(main()) == ["found", *[True] * 40]


def test_what_a_function_in_a_thread_raises_is_raised_where_it_is_awaited() -> None:
    def leave() -> None:
        raise SystemExit

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="SystemExit ended the call"):
            await in_thread(leave)

    asyncio.run(main())
