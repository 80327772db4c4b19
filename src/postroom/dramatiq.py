"""Dramatiq: messages to actors that leave with a transaction, and actors whose effect happens once.

::

    broker = RedisBroker()
    broker.add_middleware(CurrentMessage())

    @dramatiq.actor(broker=broker)
    @once(Inbox("shop"), engine)
    def charge(connection, order_id): ...

    outbox.task(session, charge, [7])
    Relay(database, brokers={"dramatiq.*": DramatiqBroker(broker)})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.brokers.dramatiq import DramatiqBroker
from postroom.once import once_decorator

from dramatiq.middleware import CurrentMessage  # isort: skip - after the broker, which says what is missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.inbox import Inbox

__all__ = ["DramatiqBroker", "once"]


def once(inbox: Inbox, transactions: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run an actor in a transaction with a mark of its message's id: one that arrives twice has its effect once.

    Put it below ``@dramatiq.actor``, and add Dramatiq's middleware ``CurrentMessage`` to the broker, which knows the
    id: without it nothing is marked. The function gets the transaction's connection or session as its first argument.
    ``transactions`` is as in `postroom.celery.once`; for an async actor, give an async engine. If the function raises,
    mark and effect roll back together, so that a retry runs it again. Raises `InvalidSetting`.
    """
    return once_decorator(inbox, transactions, _current_id, lambda: None)


def _current_id() -> str | None:
    message = CurrentMessage.get_current_message()
    return None if message is None else message.message_id
