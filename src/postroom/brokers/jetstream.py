"""A connection to NATS on which whole batches are published, and their acknowledgements heard.

The client connects, logs in and keeps the connection alive. It would make a round of its own for each message and an
object, a queue and a task's turn for each acknowledgement; here a batch is one write, and a run of acknowledgements one
read.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from postroom.brokers.port import Accepted, Outcome, Refused, Unreached
from postroom.rules.failures import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from postroom.brokers.batches import Batch

VERSION = "NATS/1.0\r\n"
AROUND = len(VERSION) + len("\r\n")
NO_RESPONDERS = "503"
UNAVAILABLE = 503
MESSAGE_EXCEEDS_MAXIMUM = 10054
NOT_THE_EXPECTED_STREAM = 10060
NO_STREAM = "no stream takes this subject; ?declare=true&stream=…&subjects=… makes one"
_FORBIDDEN = re.compile(r'permissions violation for publish to "(.*)"', re.DOTALL)


class Letter(NamedTuple):
    """A message as it goes out; its header lines are ASCII. `number` is its place in the batch."""

    number: int
    subject: str
    lines: str
    body: bytes

    @property
    def size(self) -> int:
        """Bytes, as the server counts them."""
        return AROUND + len(self.lines) + len(self.body)


class Link:
    """One connection, for as long as it lasts; nothing is replayed on another."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._batches: dict[int, tuple[Batch, Sequence[Letter]]] = {}
        self.lost: str | None = None

    async def listen(self) -> None:
        """Subscribe to all acknowledgements at once."""
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._answered)
        self.client._ps = _Runs(self.client, self._inbox, self._acknowledged)  # noqa: SLF001 - it has no other place for one

    async def send(self, letters: Sequence[Letter], batch: Batch) -> None:
        """Write a batch; until it is forgotten, it is told what becomes of each message."""
        if self.lost or not self.client.is_connected:
            batch.lose(self.lost or "the connection is closed")
            return
        name = next(self._numbers)
        self._batches[name] = (batch, letters)
        reply = f"{self._inbox}.{name}."
        pieces: list[bytes] = []
        for number, subject, lines, body in letters:
            head = len(lines) + AROUND
            pieces += (
                f"HPUB {subject} {reply}{number} {head} {head + len(body)}\r\n{VERSION}{lines}\r\n".encode(),
                body,
                b"\r\n",
            )
        await self.client._send_command(b"".join(pieces))  # noqa: SLF001 - what its own publish does with each message
        await self.client._flush_pending()  # noqa: SLF001 - as above

    def forget(self, batch: Batch) -> None:
        """What is acknowledged later is of no interest."""
        self._batches = {name: found for name, found in self._batches.items() if found[0] is not batch}

    def lose(self, reason: str) -> None:
        """The connection is gone."""
        self.lost = self.lost or reason
        for batch, _ in self._batches.values():
            batch.lose(self.lost)

    def complain(self, complaint: str) -> None:
        """The server has said something. A message that it does not permit, it does not answer otherwise."""
        found = _FORBIDDEN.search(complaint)
        if found is not None:
            for batch, letters in self._batches.values():
                for letter in letters:
                    if letter.subject.lower() == found[1].lower():
                        batch.answer(letter.number, Unreached(complaint))

    def _acknowledged(self, name: bytes, index: bytes, data: bytes) -> None:
        found = self._batches.get(int(name))
        if found is not None:
            found[0].answer(int(index), _outcome(data))

    async def _answered(self, message: Msg) -> None:
        """What does not come in a run: above all that nobody listens on the subject."""
        _, name, index = message.subject.rsplit(".", 2)
        found = self._batches.get(int(name))
        if found is not None:
            nobody = message.headers is not None and message.headers.get("Status") == NO_RESPONDERS
            outcome = Unreached(NO_STREAM) if nobody else _outcome(message.data)
            found[0].answer(int(index), outcome)


class _Runs(Parser):
    """The client's parser, but for runs of acknowledgements."""

    def __init__(self, client: Client, inbox: str, acknowledged: Callable[[bytes, bytes, bytes], None]) -> None:
        super().__init__(client)
        self._beginning = f"MSG {inbox}.".encode()
        self._one = re.compile(re.escape(self._beginning) + rb"(\d+)\.(\d+) \d+ \d+\r\n([^\r\n]*)\r\n").match
        self._acknowledged = acknowledged

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived."""
        if self.state == AWAITING_CONTROL_LINE:
            data = bytes(self.buf) + data
            self.buf.clear()
            end = 0
            while found := self._one(data, end):
                self._acknowledged(*found.groups())
                end = found.end()
            data = data[end:]
            if data.startswith(self._beginning):  # the rest of it is still to come
                self.buf += data
                return
        await super().parse(data)


class _Error(msgspec.Struct):
    code: int
    err_code: int = 0
    description: str = ""


class _Acknowledgement(msgspec.Struct, gc=False):
    stream: str = ""
    seq: int = 0
    error: _Error | None = None


_acknowledgement = msgspec.json.Decoder(_Acknowledgement).decode


def _outcome(data: bytes) -> Outcome:
    try:
        acknowledgement = _acknowledgement(data)
    except msgspec.DecodeError as error:
        return Unreached(f"the answer is not JetStream's: {error}")
    problem = acknowledgement.error
    if problem is None:
        return Accepted(f"{acknowledgement.stream}:{acknowledgement.seq}")
    if problem.err_code == MESSAGE_EXCEEDS_MAXIMUM:
        return Refused(Reason.MESSAGE_TOO_LARGE, problem.description)
    if problem.code == UNAVAILABLE or problem.err_code == NOT_THE_EXPECTED_STREAM:
        return Unreached(problem.description)
    return Refused(f"NATS_{problem.err_code}", problem.description)
