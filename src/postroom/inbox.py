"""Inbox: mark a message as processed in the transaction of its effect, so that a redelivery has no second effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from postroom.message import unique_key
from postroom.rules.saga_calls import call_of
from postroom.runtime.functions import awaited, check_function, check_sync, plain_result
from postroom.settings import Settings
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.inbox import Marker, marker_of
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import arun, run

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Sequence

    from postroom.rules.saga_calls import Headers

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Once(Generic[T]):
    """What came of `Inbox.once`. True in an ``if`` when the function was run."""

    first_time: bool
    """False: it was done before, so the function was not run."""
    result: T | None = None
    """What the function returned; None if it was not run."""

    def __bool__(self) -> bool:
        return self.first_time


class Inbox:
    """Remembers which messages a consumer has processed. Each consumer has its own marks.

    ``schema`` and ``table_prefix`` default to the settings.
    """

    def __init__(self, consumer: str, *, schema: str | None = None, table_prefix: str | None = None) -> None:
        self.consumer = unique_key("consumer", consumer)
        self._settings = Settings.load(schema=schema, table_prefix=table_prefix)
        Names.of("postgresql", self._settings.schema, self._settings.table_prefix)  # raises for an invalid identifier

    def first_time(self, connection: object, message_id: uuid.UUID | str) -> bool:
        """Mark the message in the caller's transaction. Returns False if this consumer has marked it before.

        The mark commits or rolls back with the caller's own writes. If another open transaction has marked the same
        message, the call waits until that ends.
        """
        identifier = unique_key("message_id", message_id)
        kind = sync_kind(connection, "inbox.first_time")
        return run(explained(self._marker(kind.dialect).mark(self.consumer, identifier)), kind.execute)

    async def afirst_time(self, connection: object, message_id: uuid.UUID | str) -> bool:
        """`first_time` for an async connection."""
        identifier = unique_key("message_id", message_id)
        kind = await async_kind(connection, "inbox.afirst_time")
        return await arun(explained(self._marker(kind.dialect).mark(self.consumer, identifier)), kind.execute)

    def first_times(self, connection: object, message_ids: Sequence[uuid.UUID | str]) -> list[bool]:
        """`first_time` for many messages, with a few statements. If an id occurs twice, the second one is False."""
        identifiers = [unique_key("message_id", one) for one in message_ids]
        kind = sync_kind(connection, "inbox.first_times")
        marked = run(explained(self._marker(kind.dialect).mark_many(self.consumer, identifiers)), kind.execute)
        return _first_of_each(identifiers, marked)

    async def afirst_times(self, connection: object, message_ids: Sequence[uuid.UUID | str]) -> list[bool]:
        """`first_times` for an async connection."""
        identifiers = [unique_key("message_id", one) for one in message_ids]
        kind = await async_kind(connection, "inbox.afirst_times")
        marked = await arun(explained(self._marker(kind.dialect).mark_many(self.consumer, identifiers)), kind.execute)
        return _first_of_each(identifiers, marked)

    def is_marked(self, connection: object, message_id: uuid.UUID | str) -> bool:
        """Whether this consumer has marked the message, as the caller's transaction sees it."""
        identifier = unique_key("message_id", message_id)
        kind = sync_kind(connection, "inbox.is_marked")
        return run(explained(self._marker(kind.dialect).is_marked(self.consumer, identifier)), kind.execute)

    async def ais_marked(self, connection: object, message_id: uuid.UUID | str) -> bool:
        """`is_marked` for an async connection."""
        identifier = unique_key("message_id", message_id)
        kind = await async_kind(connection, "inbox.ais_marked")
        return await arun(explained(self._marker(kind.dialect).is_marked(self.consumer, identifier)), kind.execute)

    def begin_marked(self, dedup_id: str) -> str:
        """Statements for PostgreSQL that begin a transaction and mark a message; see `PostgresMarker.begin_marked`."""
        return self._marker("postgresql").begin_marked(self.consumer, dedup_id)

    def find_mark(self, dedup_id: str) -> str:
        """A statement for PostgreSQL that finds a row if the message is marked."""
        return self._marker("postgresql").find_mark(self.consumer, dedup_id)

    def once(
        self,
        connection: object,
        message_id: uuid.UUID | str,
        function: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Once[T]:
        """Mark the message and call the function, both in the caller's transaction; do neither for a repeat.

        If the function raises, let the error end the transaction, so that mark and effect roll back together: if it
        commits nevertheless, the message counts as processed.
        """
        check_function(function, "the function of once")
        check_sync(function, _USE_AONCE)
        if not self.first_time(connection, message_id):
            return Once(first_time=False)
        return Once(first_time=True, result=plain_result(function(*args, **kwargs), function, _USE_AONCE))

    async def aonce(
        self,
        connection: object,
        message_id: uuid.UUID | str,
        function: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Once[T]:
        """`once` for an async connection and function."""
        check_function(function, "the function of aonce")
        if not await self.afirst_time(connection, message_id):
            return Once(first_time=False)
        result: Any = await awaited(function(*args, **kwargs))
        return Once(first_time=True, result=result)

    def barrier(self, connection: object, headers: Headers) -> bool:
        """Whether to carry out what a saga of another service asks for with these headers: its `saga.headers`.

        False for a repeated call, for an undo without a do, and for a do that comes after its undo: answer them as
        done, without an effect. Like `first_time`, it writes marks in the caller's transaction and waits for another
        one that has marked the same. So call it first: MariaDB and MySQL may end one of two that wait with a deadlock
        (error 1213), as may any database above READ COMMITTED; then run the whole transaction again.
        """
        call = call_of(headers)
        kind = sync_kind(connection, "inbox.barrier")
        return run(explained(self._marker(kind.dialect).pass_barrier(self.consumer, call)), kind.execute)

    async def abarrier(self, connection: object, headers: Headers) -> bool:
        """`barrier` for an async connection."""
        call = call_of(headers)
        kind = await async_kind(connection, "inbox.abarrier")
        return await arun(explained(self._marker(kind.dialect).pass_barrier(self.consumer, call)), kind.execute)

    def _marker(self, dialect: str) -> Marker:
        return marker_of(dialect, self._settings.schema, self._settings.table_prefix)


_USE_AONCE = "use `await inbox.aonce(…)` with an async connection"


def _first_of_each(identifiers: Sequence[str], marked: set[str]) -> list[bool]:
    first = {one: place for place, one in reversed(list(enumerate(identifiers)))}
    return [one in marked and first[one] == place for place, one in enumerate(identifiers)]
