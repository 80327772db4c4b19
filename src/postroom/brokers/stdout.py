"""Standard output as a broker: one line of JSON per message."""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from postroom.brokers.port import ACCEPTED, NOT_SENT, Capabilities, Outcome
from postroom.brokers.refusals import unsendable
from postroom.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class StdoutBroker:
    """Writes whole batches; a message counts as accepted when it is flushed."""

    name = "stdout"
    capabilities = Capabilities(ordered_prefix=True)

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream or sys.stdout

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Write one line for each message. Raises `BrokerUnavailable` when the output cannot be written."""
        del timeout
        if self._stream is None:
            raise BrokerUnavailable("standard output cannot be written: it was closed before the program started")
        lines: list[str] = []
        rest: list[Outcome] = []
        for message in messages:
            try:
                lines.append(_line(message))
            except Exception as error:  # noqa: BLE001 - only this message is at fault; those behind it wait
                rest = [unsendable(error), *[NOT_SENT] * (len(messages) - len(lines) - 1)]
                break
        try:
            self._stream.write("".join(lines))
            self._stream.flush()
        except (OSError, ValueError) as error:  # the pipe's reader is gone, the disk is full, the stream is closed
            raise BrokerUnavailable(f"standard output cannot be written: {error}") from error
        return [*[ACCEPTED] * len(lines), *rest]

    async def close(self) -> None:
        """Leave the stream open, because it is not ours."""


def _line(message: Message) -> str:
    fields: dict[str, Any] = {
        "id": str(message.id),
        "topic": message.topic,
        "type": message.type,
        "key": message.key,
        "aggregate_type": message.aggregate_type,
        "aggregate_id": message.aggregate_id,
        "position": message.position,
        "content_type": message.content_type,
        "headers": dict(message.headers),
        **_payload(message),
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None}).decode() + "\n"


def _payload(message: Message) -> dict[str, Any]:
    """JSON on one line, text as a string, anything else in base64 under another name."""
    if message.payload is None:
        return {}
    if "json" in message.content_type:
        with suppress(msgspec.DecodeError):  # invalid JSON is shown as text
            return {"payload": msgspec.Raw(msgspec.json.format(message.payload, indent=-1))}
    try:
        return {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(message.payload).decode()}
