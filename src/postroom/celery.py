"""Celery: tasks that leave with a transaction, and tasks whose effect happens once.

::

    app = Celery("shop", broker="redis://localhost")

    @app.task
    @once(Inbox("shop"), engine)
    def charge(connection, order_id): ...

    outbox.task(session, charge, [7])
    Relay(database, brokers={"celery.*": CeleryBroker(app)})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from postroom.brokers.celery import CeleryBroker
from postroom.once import once_decorator

from celery import current_task  # isort: skip - after the broker, which says what is missing
from celery.exceptions import Ignore  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.inbox import Inbox

__all__ = ["CeleryBroker", "once"]


def once(inbox: Inbox, transactions: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a task in a transaction with a mark of its id: a task that arrives twice has its effect once.

    Put it below ``@app.task``. The function gets the transaction's connection or session as its first argument, after
    ``self``. ``transactions`` is an SQLAlchemy engine or sessionmaker, or a function that returns a context manager
    whose end commits. If the function raises, mark and effect roll back together, so that a retry runs it again. A
    repeated task is acknowledged and keeps the result that it had. Called directly, outside a worker, the function runs
    without a mark. Raises `InvalidSetting`.
    """
    return once_decorator(inbox, transactions, _current_id, _ignore)


def _current_id() -> str | None:
    task_id: str | None = current_task.request.id if current_task else None
    return task_id


def _ignore() -> NoReturn:
    raise Ignore
