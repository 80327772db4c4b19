from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import create_engine
from sqlalchemy.util import await_only

from postroom.store.connections import async_engine, stores
from postroom.store.connections.async_engine import _to_the_end
from postroom.store.connections.stores import _Sessions

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


class OneConnection:
    """A driver whose connection says whether it was closed."""

    closed = False

    def connect(self, *_: object, **__: object) -> OneConnection:
        return self

    def close(self) -> None:
        self.closed = True


def test_a_connection_is_closed_if_the_task_that_opens_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    def cancelled(_: object) -> bool:
        raise asyncio.CancelledError

    monkeypatch.setattr(stores, "is_direct", cancelled)
    monkeypatch.setattr(stores, "break_off", lambda _: None)
    engine = create_engine("sqlite://")
    driver = OneConnection()
    with pytest.raises(asyncio.CancelledError):
        _Sessions(engine, engine.url, "postgresql", None)._connect(driver, None, (), {})
    assert driver.closed
