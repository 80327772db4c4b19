"""Workers of Dramatiq and Taskiq: ``python -m tests.acceptance.worker_programs LIBRARY REDIS DATABASE``."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from taskiq import Context, TaskiqDepends
from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker

from postroom import Inbox
from postroom.dramatiq import once as dramatiq_once
from postroom.store.connections.urls import resolve
from postroom.taskiq import OnceMiddleware
from postroom.taskiq import once as taskiq_once

INSERT = text("INSERT INTO done (task_id, what) VALUES (:task_id, :what)")


def make_actors(redis: str, database: str) -> tuple[dramatiq.Broker, Any]:
    """A broker, and an actor that writes what it was called with."""
    broker = RedisBroker(url=redis)  # type: ignore[no-untyped-call]  # Dramatiq has no type here
    broker.add_middleware(CurrentMessage())
    engine = create_engine(resolve(database))

    @dramatiq.actor(broker=broker, actor_name="charge", queue_name="money", max_retries=1, min_backoff=10)
    @dramatiq_once(Inbox("shop"), engine)
    def charge(connection: Connection, order: int, cents: int = 0) -> None:
        message: Any = CurrentMessage.get_current_message()
        what = f"{order} {cents} {message.queue_name.removesuffix('.DQ')} {message.options.get('tenant')}"
        connection.execute(INSERT, {"task_id": message.message_id, "what": what})
        if cents < 0 and not message.options.get("retries"):  # what was written rolls back, and the mark with it
            raise ValueError("the first attempt fails")

    return broker, charge


def make_tasks(redis: str, database: str) -> tuple[ListQueueBroker, Any]:
    """A broker, and a task that writes what it was called with."""
    broker = ListQueueBroker(redis, queue_name="taskiq-shop")
    broker.add_middlewares(OnceMiddleware())
    engine = create_async_engine(resolve(database, asynchronous=True))

    @broker.task(task_name="charge", tenant="acme")
    @taskiq_once(Inbox("shop"), engine)
    async def charge(
        connection: AsyncConnection,
        order: int,
        cents: int = 0,
        context: Context = TaskiqDepends(),  # noqa: B008 - as Taskiq has it
    ) -> None:
        what = f"{order} {cents} {context.message.labels['tenant']}"
        await connection.execute(INSERT, {"task_id": context.message.task_id, "what": what})

    return broker, charge


async def _work(broker: ListQueueBroker) -> None:
    await run_receiver_task(broker, run_startup=True)


if __name__ == "__main__":
    library, *places = sys.argv[1:]
    if library == "dramatiq":
        worker = dramatiq.Worker(make_actors(*places)[0], worker_timeout=100, worker_threads=1)
        worker.start()
        threading.Event().wait()
    else:
        asyncio.run(_work(make_tasks(*places)[0]))
