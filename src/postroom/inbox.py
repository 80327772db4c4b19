"""Inbox: mark a message as processed in the transaction of its effect, so that a redelivery has no second effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.message import unique_key
from postroom.settings import Settings
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.inbox import MARKERS, Marker
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import arun, run

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence


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

    def _marker(self, dialect: str) -> Marker:
        return MARKERS[dialect](Names.of(dialect, self._settings.schema, self._settings.table_prefix))


def _first_of_each(identifiers: Sequence[str], marked: set[str]) -> list[bool]:
    first = {one: place for place, one in reversed(list(enumerate(identifiers)))}
    return [one in marked and first[one] == place for place, one in enumerate(identifiers)]
