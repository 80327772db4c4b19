"""Taskiq: tasks that leave with a transaction, and tasks whose effect happens once.

::

    broker = ListQueueBroker("redis://localhost").with_middlewares(OnceMiddleware())

    @broker.task
    @once(Inbox("shop"), engine)
    async def charge(connection, order_id: int): ...

    await outbox.atask(session, charge, [7])
    Relay(database, brokers={"taskiq.*": TaskiqBroker(broker)})
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from postroom.brokers.taskiq import TaskiqBroker
from postroom.once import once_decorator

from taskiq import TaskiqMiddleware  # isort: skip - after the broker, which says what is missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskiq import TaskiqMessage

    from postroom.inbox import Inbox

__all__ = ["OnceMiddleware", "TaskiqBroker", "once"]

_current: ContextVar[str | None] = ContextVar("postroom_task", default=None)


class OnceMiddleware(TaskiqMiddleware):
    """Tells `once` which task is being run. Add it to the broker's middlewares."""

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Note the task's id."""
        _current.set(message.task_id)
        return message


def once(inbox: Inbox, transactions: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a task in a transaction with a mark of its id: a task that arrives twice has its effect once.

    Put it below ``@broker.task``, and add `OnceMiddleware` to the broker: without it nothing is marked. The function
    gets the transaction's connection or session as its first argument. ``transactions`` is an SQLAlchemy engine or
    sessionmaker, for an async task an async one, or a function that returns a context manager whose end commits. If the
    function raises, mark and effect roll back together, so that a retry runs it again. Raises `InvalidSetting`.
    """
    return once_decorator(inbox, transactions, _current.get, lambda: None)
