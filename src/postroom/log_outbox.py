"""LogOutbox: an outbox without a table. Messages are in PostgreSQL's write-ahead log alone, and read from there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Unpack

from postroom.errors import InvalidMessage, UnsupportedDatabase
from postroom.message import Fields, Message
from postroom.outbox import check_acceptable
from postroom.settings import Settings
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import arun, run
from postroom.store.stream.log_messages import LogWriter, encoded

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps

CANNOT = ("idempotency_key", "deliver_at", "expires_at", "ledger")
"""What needs a row."""


class LogOutbox:
    """Records messages in the caller's transaction, in PostgreSQL's write-ahead log, for ``postroom relay --cdc``.

    It writes no row, so there is nothing to clean up, and nothing to look up: a message that was sent has left no trace
    here. It cannot tell that a message was added before, nor hold one back until a time. **If the slot is lost, so are
    the messages that were not read yet**; with `Outbox` they are not. A message that cannot be sent at once gets a row
    after all, and goes the way of all others.

    ``schema``, ``table_prefix`` and ``max_payload_bytes`` default to the settings.
    """

    def __init__(
        self, *, schema: str | None = None, table_prefix: str | None = None, max_payload_bytes: int | None = None
    ) -> None:
        self._settings = Settings.load(schema=schema, table_prefix=table_prefix, max_payload_bytes=max_payload_bytes)
        names = Names.of("postgresql", self._settings.schema, self._settings.table_prefix)
        self._writer = LogWriter(names)

    def add(self, connection: object, topic: str, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """Record one message in the connection's open transaction, and return it.

        Raises `InvalidMessage`, also for an idempotency key, a due time, an expiry or a ledger entry, which need a row;
        and `UnusableConnection` while no relay reads the log. Then nothing was written.
        """
        message = self._message(topic, payload, fields)
        kind = sync_kind(connection, "log_outbox.add")
        run(explained(self._write(kind.dialect, message)), kind.execute)
        return message

    async def aadd(self, connection: object, topic: str, payload: object = None, **fields: Unpack[Fields]) -> Message:
        """`add` for an async connection."""
        message = self._message(topic, payload, fields)
        kind = await async_kind(connection, "log_outbox.aadd")
        await arun(explained(self._write(kind.dialect, message)), kind.execute)
        return message

    def _message(self, topic: str, payload: object, fields: Fields) -> Message:
        for name in CANNOT:
            if fields.get(name) is not None:
                raise InvalidMessage(f"{name} is given, which an outbox without a table cannot keep: use Outbox")
        message = Message.new(topic, payload, **fields)
        check_acceptable(message, self._settings)
        return message

    def _write(self, dialect: str, message: Message) -> Steps[None]:
        if dialect != "postgresql":
            raise UnsupportedDatabase(f"only PostgreSQL has a write-ahead log to write to, and this is {dialect}")
        return self._writer.write([encoded(message, datetime.now(UTC))])
