from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.util import await_only

from postroom.store.connections import async_engine
from postroom.store.connections.async_engine import _to_the_end

PATIENCE = 10


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_cancelled_task_waits_for_its_connection_to_close_unless_the_server_hangs(
    monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    monkeypatch.setattr(async_engine, "CLOSING", 0.01 if hangs else PATIENCE)
    closing, answer = asyncio.Event(), asyncio.Event()
    closed: list[bool] = []

    def close() -> None:
        closing.set()
        await_only(answer.wait())
        closed.append(True)

    task = asyncio.create_task(_to_the_end(close))
    await closing.wait()
    task.cancel()
    if not hangs:
        asyncio.get_running_loop().call_later(0.01, answer.set)
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done == {task}
    assert task.cancelled()
    assert closed == ([] if hangs else [True])
    answer.set()
    await asyncio.sleep(0)
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert closed == [True]
