"""The mode of an outbox: whether new messages go to the stream or to the delivery table, and what relays may do."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What the tables say to producers and relays, in the order in which an outbox goes back to the table."""

    TABLE = "table"
    """Every message has a delivery. The stream, if there is one, is empty."""
    STREAM = "stream"
    """Messages without a due time have no delivery: they are read from the write-ahead log."""
    CLOSING = "closing"
    """As `STREAM`, but nobody reads the stream any more, and relays give up their lanes."""
    DRAINING = "draining"
    """New messages have deliveries. No lane may be read until those that were left in the stream have theirs."""

    DEBEZIUM = "debezium"
    """As `STREAM`, but Debezium reads the stream, and no relay does."""

    @property
    def lanes_rest(self) -> bool:
        """Whether relays hold no lanes: what is in them may come before what is still in the stream."""
        return self in {Mode.CLOSING, Mode.DRAINING}


STREAMING = (Mode.STREAM, Mode.CLOSING, Mode.DEBEZIUM)
"""In these modes, new messages without a due time have no delivery."""

STREAM = "outbox"
"""The name of the row that holds the mode."""

OLDEST_SERVER = 15
"""The first PostgreSQL that publishes some columns of some rows."""
