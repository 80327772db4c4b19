"""An outbox on one connection: for what hands it to a request, with the request's own session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.message import Fields, Message
    from postroom.outbox import Outbox


class BoundOutbox:
    """The methods of an `Outbox`, without their first parameter."""

    def __init__(self, outbox: Outbox, connection: object) -> None:
        self._outbox = outbox
        self._connection = connection

    def add(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """`Outbox.add` on this connection."""
        return self._outbox.add(self._connection, topic, payload, **fields)

    async def aadd(self, topic: str | None, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """`Outbox.aadd` on this connection."""
        return await self._outbox.aadd(self._connection, topic, payload, **fields)

    def add_many(self, messages: Iterable[Message]) -> list[Message]:
        """`Outbox.add_many` on this connection."""
        return self._outbox.add_many(self._connection, messages)

    async def aadd_many(self, messages: Iterable[Message]) -> list[Message]:
        """`Outbox.aadd_many` on this connection."""
        return await self._outbox.aadd_many(self._connection, messages)

    def publish(self, event: object, **fields: Unpack[Fields]) -> Message:
        """`Outbox.publish` on this connection."""
        return self._outbox.publish(self._connection, event, **fields)

    async def apublish(self, event: object, **fields: Unpack[Fields]) -> Message:
        """`Outbox.apublish` on this connection."""
        return await self._outbox.apublish(self._connection, event, **fields)

    def task(
        self, task: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Message:
        """`Outbox.task` on this connection."""
        return self._outbox.task(self._connection, task, args, kwargs, **options)

    async def atask(
        self, task: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Message:
        """`Outbox.atask` on this connection."""
        return await self._outbox.atask(self._connection, task, args, kwargs, **options)
