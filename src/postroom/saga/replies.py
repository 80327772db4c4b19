"""Replies: signal an event by the correlation id that a saga sent along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidMessage
from postroom.rules.saga_calls import correlated
from postroom.saga.messages import signal_message
from postroom.saga.recording import Recorder
from postroom.settings import Settings

if TYPE_CHECKING:
    import uuid

    from postroom.message import Message


def reply(
    connection: object,
    correlation_id: str,
    payload: object = None,
    *,
    message_id: uuid.UUID | str | None = None,
    schema: str | None = None,
    table_prefix: str | None = None,
) -> None:
    """Signal the event that ``saga.correlation_id(event)`` stands for, in the connection's open transaction.

    With a ``message_id``, a repetition is the same signal. Raises `InvalidMessage` if the text is no correlation id.
    """
    recorder = _recorder(schema, table_prefix)
    recorder.run(connection, "saga.reply", recorder.signal(_message(correlation_id, payload, message_id)))


async def areply(
    connection: object,
    correlation_id: str,
    payload: object = None,
    *,
    message_id: uuid.UUID | str | None = None,
    schema: str | None = None,
    table_prefix: str | None = None,
) -> None:
    """`reply` for an async connection."""
    recorder = _recorder(schema, table_prefix)
    await recorder.arun(connection, "saga.areply", recorder.signal(_message(correlation_id, payload, message_id)))


def _recorder(schema: str | None, table_prefix: str | None) -> Recorder:
    return Recorder(Settings.load(schema=schema, table_prefix=table_prefix))


def _message(correlation_id: object, payload: object, message_id: uuid.UUID | str | None) -> Message:
    found = correlated(correlation_id) if isinstance(correlation_id, str) else None
    if found is None:
        raise InvalidMessage(
            f"{str(correlation_id)[:80]!r} is not a correlation id: pass on the text that saga.correlation_id(event) "
            "gave"
        )
    return signal_message(*found, payload, message_id=message_id)
