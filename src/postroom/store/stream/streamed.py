"""Which messages go to the stream, in SQL: asked by the statement that inserts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import LEDGER
from postroom.rules.stream.modes import STREAM, STREAMING, Mode
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping


def stream_mode(table: str) -> str:
    """Selects the mode, or NULL if all messages have deliveries."""
    modes = ", ".join(f"'{mode}'" for mode in STREAMING)
    return f"SELECT max(mode) AS mode FROM {table} WHERE name = '{STREAM}' AND mode IN ({modes})"


def is_streamed(columns: Mapping[str, str], mode: str = "stream.mode") -> str:
    """Whether a message with these columns goes to the stream. Scheduled ones never do.

    A relay sees to the rest when it reads the message. Debezium does not, and knows one broker: so what expires, has an
    entry in the ledger, or goes to another broker, is left to relays. While an outbox leaves the stream, the reader may
    still be Debezium.
    """
    return (
        f"{mode} IS NOT NULL AND {columns['state']} = {int(Stored.READY)} AND ({mode} = '{Mode.STREAM}' "
        f"OR {columns['queue']} = '{DEFAULT_QUEUE}' AND {columns['expires_at']} IS NULL "
        f"AND NOT coalesce(jsonb_exists({columns['headers']}, '{LEDGER}'), false))"
    )


def answer(columns: Mapping[str, str]) -> str:
    """Selects from `stream`, for a message with these columns: whether it is streamed, and whether to Debezium."""
    return f"{is_streamed(columns)} AS flows, stream.mode <> '{Mode.STREAM}' AS to_debezium"


def never_null(columns: Mapping[str, str], to_debezium: str) -> str:
    """The type as it leaves: a message without one has its topic's name. Debezium can send only what is in the row."""
    return f"coalesce({columns['type']}, CASE WHEN {to_debezium} THEN {columns['topic']} END)"
