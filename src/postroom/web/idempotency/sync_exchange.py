"""One keyed request in a sync application: its lease is renewed until its response is recorded, for WSGI and Django."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from postroom.web.idempotency.response_state import Action, ResponseState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from postroom.rules.replay import Response
    from postroom.web.idempotency.core import Core
    from postroom.web.idempotency.keyed_flow import Flow
    from postroom.web.idempotency.keyed_request import KeyedRequest
    from postroom.web.idempotency.lease_renewal import LeaseRenewal

T = TypeVar("T")


class Connections(Protocol):
    """Connections to the ledger, for threads."""

    def drive(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""


class SyncExchange:
    """Acts on the state of the response. There is no ``renewal`` if nobody else can see the entry."""

    def __init__(self, core: Core, connections: Connections, keyed: KeyedRequest, renewal: LeaseRenewal | None) -> None:
        self.keyed = keyed
        self.response = ResponseState(core.policy)
        self._flow = core.flow
        self._drive = connections.drive
        self._renewal = renewal
        if renewal is not None:
            renewal.add(keyed)

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """If the block raises, the request may run again at once."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def finish(self, last: bytes = b"") -> Response | None:
        """The application has ended, with this last part: record the response, or release the key if it failed.

        Returns the response to send instead, or None.
        """
        action = self.response.add(last, more=False)
        if action is Action.HOLD:
            action = self.response.end(failed=self.keyed.failed)
        return self._settle(action)

    def abandon(self) -> None:
        """The client has disconnected, and the stream had its time: unless it has ended, it counts as done."""
        self._settle(self.response.abandon(failed=self.keyed.failed))

    def release(self) -> None:
        """Let the request run again, unless its response is recorded."""
        self._settle(Action.RELEASE)

    def _settle(self, action: Action) -> Response | None:
        if self.response.is_settled:
            return None
        instead = None
        if action is Action.RECORD:
            instead = self._drive(self._flow.record(self.keyed, self.response.record()))
        self.response.settle()
        if self._renewal is not None:
            self._renewal.remove(self.keyed)
        if action is Action.RELEASE:
            self._drive(self._flow.release(self.keyed.entry))
        return instead


def _nothing() -> None:
    pass


class RecordedStream:
    """The parts of a streamed response, on their way to the server, which closes it in the end.

    Each part is passed on when the next one is there: before the last one, it is recorded that there was a response.
    """

    def __init__(self, exchange: SyncExchange, parts: Iterator[bytes], close: Callable[[], None] = _nothing) -> None:
        self._exchange = exchange
        self._parts = self._recorded(parts)
        self._close = close
        self._one_at_a_time = threading.Lock()  # Django reads in one thread, and closes in another on a disconnect

    def __iter__(self) -> Iterator[bytes]:
        """It is its own iterator."""
        return self

    def __next__(self) -> bytes:
        """The next part."""
        with self._one_at_a_time:
            return next(self._parts)

    def close(self) -> None:
        """The server has sent everything, or the client has disconnected: let the application finish, for a while."""
        deadline = time.monotonic() + self._exchange.response.drain_seconds
        try:
            while time.monotonic() < deadline and next(self, None) is not None:
                pass
            self._exchange.abandon()
        finally:
            with self._one_at_a_time:
                self._parts.close()
                self._close()

    def _recorded(self, parts: Iterator[bytes]) -> Generator[bytes]:
        with self._exchange.released_on_error():
            last = next(parts, b"")
            for part in parts:
                yield last
                last = part
            self._exchange.finish()
        yield last
