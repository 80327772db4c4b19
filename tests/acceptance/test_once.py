"""A function with `once`: mark and effect in one transaction, whatever the function does with it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from postroom import Inbox
from postroom.errors import UnusableConnection
from postroom.once import once_decorator
from postroom.store.connections.urls import resolve
from tests.acceptance.service import Service
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase

INSERT = text("INSERT INTO effect VALUES (:number)")


def effects(service: Service) -> list[int]:
    return [int(str(number)) for [number] in service.rows("SELECT number FROM effect ORDER BY number")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_takes_effect_once_and_never_without_its_mark(kind: str, ready_database: FreshDatabase) -> None:
    task: list[str | None] = [None]
    repeats: list[str | None] = []
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE effect (number INTEGER)")
        given: Any = (Inbox("shop"), service.engine, lambda: task[0], lambda: repeats.append(task[0]))

        @once_decorator(*given)
        def charge(connection: Connection, number: int, spoil: str = "") -> int:
            connection.execute(INSERT, {"number": number})
            match spoil:
                case "raise":
                    raise ValueError(number)
                case "roll back":
                    connection.exec_driver_sql("ROLLBACK")
                case "go on":
                    with pytest.raises(DBAPIError):
                        connection.execute(text("SELECT * FROM nowhere"))
                case _:
                    pass
            return number

        task[0] = str(uuid.uuid4())
        with pytest.raises(ValueError, match="1"):
            charge(1, "raise")
        with pytest.raises(UnusableConnection, match="has rolled back its transaction, and the mark with it"):
            charge(1, "roll back")
        if kind == "postgresql":  # it undoes what went on after an error: acknowledged, the task would be lost
            with pytest.raises(DBAPIError, match="aborted"):
                charge(1, "go on")
        assert effects(service) == []
        assert charge(1) == 1
        assert charge(1) is None
        assert repeats == [task[0]]
        task[0] = None  # called directly
        assert charge(2) == 2
        assert charge(2) == 2
        assert effects(service) == [1, 2, 2]

        engine = create_async_engine(resolve(service.url, asynchronous=True))

        @once_decorator(Inbox("shop"), engine, lambda: task[0], lambda: None)
        async def acharge(connection: AsyncConnection, number: int) -> int:
            await connection.execute(INSERT, {"number": number})
            return number

        task[0] = str(uuid.uuid4())
        assert [await acharge(3), await acharge(3)] == [3, None]
        assert effects(service) == [1, 2, 2, 3]

        @once_decorator(Inbox("shop"), engine, lambda: task[0], lambda: None)
        async def outer(_: AsyncConnection, number: int) -> int:
            return await acharge(number) if kind != "sqlite" else number  # where one writer waits for another

        task[0] = str(uuid.uuid4())  # of both: to wait for one's own mark would last for ever
        async with asyncio.timeout(10):
            assert [await outer(4), await outer(4)] == [4, None]
        await engine.dispose()
