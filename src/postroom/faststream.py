"""FastStream: its brokers as destinations of a relay, and the inbox as a middleware of subscribers.

::

    broker = NatsBroker(middlewares=[InboxMiddleware(Inbox("billing"), engine)])

    @broker.subscriber("orders", stream="orders", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def bill(order: Order, connection: Connection): ...

    Relay(database, FastStreamBroker(NatsBroker(), stream="orders"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from postroom.brokers.cloudevents import CONTENT_TYPE, incoming
from postroom.brokers.faststream import FORMATS, FastStreamBroker, kind_of
from postroom.compose.transactions import Transactions
from postroom.errors import InvalidSetting
from postroom.inbox import Inbox
from postroom.once import require_mark

from faststream import BaseMiddleware, Context  # isort: skip - after the broker, which says what is missing
from faststream.exceptions import SkipMessage  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from faststream import ContextRepo
    from faststream.message import StreamMessage

    from postroom.incoming import Incoming

__all__ = ["Connection", "FastStreamBroker", "InboxMiddleware"]

_CONNECTION = "postroom_connection"
Connection = Annotated[Any, Context(_CONNECTION)]
"""Annotates a handler's parameter: the connection or session of the transaction in which it runs."""


class InboxMiddleware:
    """Runs each handler in a transaction with a mark of its message: one that comes again has no second effect.

    Give it to a FastStream broker or router as one of its ``middlewares``. ``transactions`` is an SQLAlchemy async
    engine or async_sessionmaker, or a function that returns an async context manager whose end commits, such as an
    asyncpg pool's. A repetition is acknowledged, and its handler not called. If the handler raises, mark and effect
    roll back together, and FastStream does what the subscriber's ``ack_policy`` says: to get the message again, set
    ``AckPolicy.NACK_ON_ERROR``.

    A message is identified by source and id, as a `Consumer` identifies it. One that no outbox has sent is identified
    by what ``identify(message)`` returns, or else by RabbitMQ's ``message_id`` or the header ``Nats-Msg-Id``; one
    without any identity is handled every time. Raises `InvalidSetting`.
    """

    def __init__(
        self,
        inbox: Inbox,
        transactions: object,
        *,
        identify: Callable[[StreamMessage[Any]], str | None] | None = None,
    ) -> None:
        if not isinstance(inbox, Inbox):
            raise InvalidSetting(f"InboxMiddleware takes an Inbox, not a {type(inbox).__name__}")
        if transactions is None:
            raise InvalidSetting("InboxMiddleware needs what opens transactions: give an async engine")
        self.inbox = inbox
        self.transactions = Transactions(transactions, None, "handler")
        self._identify = identify

    def __call__(self, message: Any, /, *, context: ContextRepo) -> _InboxScope:
        """The middleware of one message."""
        return _InboxScope(self, message, context=context)

    def identity_of(self, message: StreamMessage[Any]) -> str | None:
        """What identifies a message; None if nothing does."""
        found = incoming_of(message)
        if found is not None and found.source is not None:
            return found.dedup_id
        if self._identify is not None:
            return self._identify(message)
        return found.dedup_id if found is not None and found.id else None


class _InboxScope(BaseMiddleware[Any, Any]):
    """Handles one message."""

    def __init__(self, middleware: InboxMiddleware, message: Any, /, *, context: ContextRepo) -> None:
        super().__init__(message, context=context)
        self._middleware = middleware

    async def consume_scope(self, call_next: Callable[[Any], Any], msg: StreamMessage[Any]) -> Any:
        """Mark the message, call the handler, and commit; or skip the message."""
        if msg.batch_headers:
            raise InvalidSetting(
                "InboxMiddleware marks messages one by one: use it with subscribers without batch=True"
            )
        identity = self._middleware.identity_of(msg)
        async with self._middleware.transactions.waiting() as connection:
            if identity is None or await self._middleware.inbox.afirst_time(connection, identity):
                with self.context.scope(_CONNECTION, connection):
                    result = await call_next(msg)
                if identity is not None:
                    require_mark(is_there=await self._middleware.inbox.ais_marked(connection, identity))
                return result
        await msg.ack()
        raise SkipMessage


def incoming_of(message: StreamMessage[Any]) -> Incoming | None:
    """A message of FastStream as a consumer of this project sees it; None if it is of an unknown kind of broker.

    Its id is empty if it has none that its sender has given.
    """
    kind = kind_of(message)
    if kind is None:
        return None
    headers = {name: _text(value) for name, value in message.headers.items()}
    if message.content_type:
        headers.setdefault(CONTENT_TYPE, message.content_type)
    raw = message.raw_message
    given = getattr(raw, "message_id", None) if kind == "rabbit" else headers.get("Nats-Msg-Id")
    topic = getattr(raw, "routing_key", None) or getattr(raw, "subject", None) or ""
    body = message.body if isinstance(message.body, bytes) else None
    return incoming(FORMATS[kind], headers, body, id=given or "", topic=topic)


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
