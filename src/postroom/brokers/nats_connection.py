"""A connection to NATS that publishes whole batches and collects their acknowledgements.

The client connects, logs in and keeps the connection alive. But it would need a round trip for each message, and an
object, a queue and a task switch for each acknowledgement. Here a batch is one write, and a run of acknowledgements is
one read.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from postroom.brokers.nats_replies import NO_RESPONDERS, ReplyParser, outcome_of
from postroom.brokers.port import TargetUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.client import Client

    from postroom.brokers.batch import Batch

VERSION = "NATS/1.0\r\n"
AROUND = len(VERSION) + len("\r\n")
NO_STREAM = TargetUnavailable("no stream accepts this subject; ?declare=true&stream=NAME&subjects=SUBJECTS creates one")
NOT_JETSTREAM = TargetUnavailable(
    "no stream has accepted it, and it is not JetStream that answers on this subject; "
    "?declare=true&stream=NAME&subjects=SUBJECTS creates a stream"
)
_FORBIDDEN = re.compile(r'permissions violation for publish to "(.*)"', re.DOTALL)


class Outgoing(NamedTuple):
    """A message, encoded; its header lines are ASCII. `number` is its place in the batch."""

    number: int
    subject: str
    lines: str
    body: bytes

    @property
    def size(self) -> int:
        """Bytes as the server counts them."""
        return AROUND + len(self.lines) + len(self.body)


class NatsConnection:
    """One connection, for as long as it lasts; nothing is sent again on another one."""

    def __init__(self, client: Client, stream: str | None = None) -> None:
        self.client = client
        self._stream = stream
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._batches: dict[int, tuple[Batch, Sequence[Outgoing]]] = {}
        self.lost: str | None = None

    async def listen(self) -> None:
        """Subscribe to all acknowledgements with one subscription."""
        await self.client.subscribe(f"{self._inbox}.*.*")
        self.client._ps = ReplyParser(self.client, self._inbox, self._replied)  # noqa: SLF001 - it has no other place for one

    async def send(self, outgoing: Sequence[Outgoing], batch: Batch) -> None:
        """Write a batch. Until `forget`, the outcome of each message is recorded in `batch` when it arrives."""
        if self.lost or not self.client.is_connected:
            batch.lose(self.lost or "the connection is closed")
            return
        name = next(self._numbers)
        self._batches[name] = (batch, outgoing)
        reply = f"{self._inbox}.{name}."
        pieces: list[bytes] = []
        for number, subject, lines, body in outgoing:
            head = len(lines) + AROUND
            pieces += (
                f"HPUB {subject} {reply}{number} {head} {head + len(body)}\r\n{VERSION}{lines}\r\n".encode(),
                body,
                b"\r\n",
            )
        await self.client._send_command(b"".join(pieces))  # noqa: SLF001 - what its own publish does with each message
        await self.client._flush_pending()  # noqa: SLF001 - as above

    def forget(self, batch: Batch) -> None:
        """Ignore later acknowledgements of this batch."""
        self._batches = {name: found for name, found in self._batches.items() if found[0] is not batch}

    def lose(self, reason: str) -> None:
        """Mark the connection as lost."""
        self.lost = self.lost or reason
        for batch, _ in self._batches.values():
            batch.lose(self.lost)

    def server_error(self, text: str) -> None:
        """Handle an error from the server. It gives no other answer to a message that it does not permit."""
        found = _FORBIDDEN.search(text)
        if found is not None:
            for batch, outgoing in self._batches.values():
                for one in outgoing:
                    if one.subject.lower() == found[1].lower():
                        batch.answer(one.number, TargetUnavailable(text))

    def _replied(self, name: int, number: int, headers: bytes, data: bytes) -> None:
        found = self._batches.get(name)
        if found is None or number >= found[0].size:
            return
        outcome = NO_STREAM if headers.startswith(NO_RESPONDERS) else outcome_of(data, self._stream)
        if outcome is None:
            found[0].presume(number, NOT_JETSTREAM)  # JetStream's own answer may still come
        else:
            found[0].answer(number, outcome)
