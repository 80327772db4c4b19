"""Sagas on SQLite, which has one writer at a time: its steps take turns, and leave no lock behind."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import Admin, Relay, Saga, schema
from postroom.admin import SagaFilter
from postroom.cli.saga_timeline import MOST_EVENTS, print_saga
from postroom.errors import Refused
from postroom.runtime.call import Call
from postroom.runtime.calls import Calls, Words
from postroom.store.admin.saga_lookup import PendingEvent
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    schema.create(url)
    return url


def start(url: str, saga: Saga[Any], *ids: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
        for one in ids:
            saga.start(connection, {}, id=one)


def states(url: str) -> dict[str, str]:
    with Admin(url) as admin:
        return {one.id: str(one.state) for one in admin.sagas(SagaFilter())}


async def test_S_3_steps_that_wait_for_their_turn_do_not_time_out(url: str) -> None:
    """Together they take longer than the timeout of each."""
    saga: Saga[Any] = Saga("wide")

    async def write(saga: Any) -> None:
        await saga.connection.execute(text("SELECT 1"))
        await asyncio.sleep(0.05)

    for number in range(10):
        saga.step(group="together", timeout=0.5, name=f"step-{number}")(write)
    start(url, saga, "a", "b")
    await Relay(url, sagas=[saga]).run_until_empty()
    assert states(url) == {"a": "completed", "b": "completed"}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Garbage that is part of a cycle stays, as it does for a while in a process with little to do."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_S_3_a_step_that_is_cancelled_while_it_waits_for_the_lock_leaves_no_lock_behind(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    calls = Calls(Words("steps", "saga"), 2, database_answers=_yes, is_lost_connection=_no, report=print)
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args={"timeout": 30})
    with closing(sqlite3.connect(file, isolation_level=None, timeout=1)) as other:
        other.execute("CREATE TABLE stock (pieces INTEGER)")
        other.execute("INSERT INTO stock VALUES (3)")
        other.execute("BEGIN IMMEDIATE")

        async def step(call: Call) -> None:
            async with engine.begin() as connection:
                await connection.execute(text("UPDATE stock SET pieces = 2 RETURNING pieces"))

        with pytest.raises(TimeoutError):
            await calls.run(Call(is_async=True, timeout=0.1, subjects=frozenset()), print, step)
        other.execute("COMMIT")
        await wait_for(lambda: not calls._late)
        other.execute("BEGIN IMMEDIATE")
    calls.close()
    await engine.dispose()


async def _yes() -> bool:
    return True


def _no(_error: BaseException) -> bool:
    return False


async def test_S_1_a_call_that_hangs_for_ever_in_its_thread_is_given_up_and_its_saga_ends(url: str) -> None:
    saga: Saga[Any] = Saga("hanging")
    goes_on = threading.Event()

    @saga.call(timeout=0.1)
    def hang(saga: Any) -> None:
        goes_on.wait(60)

    @hang.compensation
    def undo(saga: Any) -> None: ...

    start(url, saga, "a")
    async with Relay(url, sagas=[saga], poll_interval_sec=0.05):
        await wait_for(lambda: states(url) == {"a": "compensated"})
    goes_on.set()
    with Admin(url) as admin:
        failure = admin.saga("hanging", "a").turned_message
    assert "an earlier call of 'hang' still runs although its time is up" in str(failure)


async def test_S_1_a_saga_is_shown_in_the_order_of_its_plan_with_its_groups_and_why_steps_were_skipped(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saga: Saga[Any] = Saga("shown")
    is_done = asyncio.Event()

    @saga.call(group="ask")
    async def first(saga: Any) -> None:
        await is_done.wait()

    @saga.call(group="ask")
    async def second(saga: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, is_done.set)

    @saga.call(when=lambda _: False)
    async def rarely(saga: Any) -> None: ...

    @saga.call
    async def refuse(saga: Any) -> None:
        raise Refused("NO")

    @refuse.compensation
    async def undo(saga: Any) -> None: ...

    start(url, saga, "a")
    await Relay(url, sagas=[saga]).run_until_empty()
    with Admin(url) as admin:
        told = admin.saga("shown", "a")
    print_saga(told)
    shown = capsys.readouterr().out
    assert shown.index("  first  ") < shown.index("  second  ") < shown.index("  rarely  ")
    assert "(first + second) → rarely → refuse" in shown
    assert "skipped: its condition said no" in shown
    assert "undo skipped: it was refused, so there is nothing to undo" in shown
    event = PendingEvent("parcel", str(uuid4()), told.started_at, None)
    print_saga(replace(told, events=(event,) * (MOST_EVENTS + 3)))
    shown = capsys.readouterr().out
    assert shown.count("parcel") == MOST_EVENTS
    assert "and 3 more, which `--json` lists" in shown
