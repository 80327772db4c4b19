"""The state of a keyed response: what of it may be sent, and when it is recorded.

No I/O happens here. The adapters for ASGI, WSGI and Django report what the application does, and carry out the
`Action` that they get back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from postroom.rules.replay import Response
from postroom.web.idempotency.recorded_responses import is_event_stream

if TYPE_CHECKING:
    from postroom.web.idempotency.policy import Policy

SERVER_ERROR = 500
DRAIN_SECONDS = 10.0
"""How long a stream may run on after its client has disconnected."""


class Action(Enum):
    """What the adapter does next."""

    HOLD = "send nothing yet"
    SEND = "send what was held back"
    RECORD = "record the response, then send what was held back"
    RELEASE = "let the request run again, then send what was held back if the response is whole"


class ResponseState:
    """One response, from its first byte to the moment when its outcome is settled.

    | state | what happens to the response |
    |---|---|
    | held | it is kept back until it is whole and recorded; then it can be replayed |
    | streamed | too large, or a stream of events: its parts are sent as they come, the last one after it is recorded \
that there was a response |
    | settled | it is recorded, or the key is released |

    A whole response is recorded at once, except a server error: frameworks send one and then raise, so it is held until
    the application has ended.
    """

    def __init__(self, policy: Policy) -> None:
        self.status = SERVER_ERROR
        self.is_event_stream = False
        """The client expects each part at once, and there may be no end."""
        self.is_streamed = False
        self.is_whole = False
        self.is_settled = False
        self._policy = policy
        self._headers: tuple[tuple[str, str], ...] = ()
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def drain_seconds(self) -> float:
        """How long to wait for the end after the client has disconnected: not at all for a stream of events."""
        return 0.0 if self.is_event_stream else DRAIN_SECONDS

    def start(self, status: int, headers: tuple[tuple[str, str], ...], *, streamed: bool = False) -> None:
        """The application has started its response; again, if it replaces one of which nothing was sent."""
        self.status = status
        self._headers = headers
        self._parts.clear()
        self._size = 0
        self.is_event_stream = status < SERVER_ERROR and is_event_stream(headers)
        self.is_streamed = self.is_streamed or streamed or self.is_event_stream

    def add(self, part: bytes, *, more: bool) -> Action:
        """The application has produced a part of the body."""
        self._size += len(part)
        self.is_streamed = self.is_streamed or self._size > self._policy.max_response_bytes
        if not self.is_streamed:
            self._parts.append(part)
        self.is_whole = not more
        if self.is_whole:
            return Action.RECORD if self.status < SERVER_ERROR else Action.HOLD
        return Action.SEND if self.is_streamed else Action.HOLD

    def end(self, *, failed: bool, disconnected: bool = False) -> Action:
        """The application has ended. It failed if it raised, or if its server error was made of an exception.

        A stream of events whose client has disconnected may end in any way: it is done.
        """
        if self.is_settled:
            return Action.HOLD
        if self.is_event_stream and (disconnected or not failed):
            return Action.RECORD
        return Action.RECORD if self.is_whole and not failed else Action.RELEASE

    def abandon(self, *, failed: bool) -> Action:
        """The client has disconnected, and the time to drain is over: the stream counts as done."""
        if self.is_settled:
            return Action.HOLD
        return Action.RELEASE if failed and self.status >= SERVER_ERROR else Action.RECORD

    def settle(self) -> None:
        """The response is recorded, or the key is released: nothing more is to be decided."""
        self.is_settled = True

    def record(self) -> Response:
        """What the ledger is to keep."""
        if self.is_streamed:
            return self._policy.not_kept(Response(self.status, self._headers))
        return self._policy.kept(Response(self.status, self._headers, b"".join(self._parts)))
