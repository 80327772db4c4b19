"""One keyed request while a sync application handles it: held, and then recorded or given up."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.web.idempotency.recorded_responses import is_endless

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from postroom.rules.replay import Response
    from postroom.web.idempotency.desks import Desk, Setup
    from postroom.web.idempotency.keyed_request import KeyedRequest

SERVER_ERROR = 500
PATIENCE = 10.0
"""Seconds in which a stream whose client has gone may come to its end."""


def _nothing() -> None:
    pass


class KeyedRun:
    """Its lease is renewed until it has ended, in one way or the other."""

    def __init__(self, desk: Desk, setup: Setup, keyed: KeyedRequest) -> None:
        self.keyed = keyed
        self._desk = desk
        self._setup = setup
        self._ended = False
        desk.hold(keyed)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Where the block raises, the request may run again at once."""
        try:
            yield
        except BaseException:
            self.give_up()
            raise

    def has_failed(self, status: int) -> bool:
        """Whether a response of this status was made of an exception."""
        return self.keyed.failed and status >= SERVER_ERROR

    def conclude(self, response: Response) -> Response | None:
        """Record the response, which can be given again; returns what is to be sent instead, or None."""
        return self._end(self._setup.policy.kept(response))

    def streamed(self, response: Response, parts: Iterator[bytes], close: Callable[[], None] = _nothing) -> Stream:
        """The response's parts as they come; before the last one it is recorded that there was one.

        Where the client goes in between, the application still comes to its end, or counts as done after `PATIENCE`,
        and its parts are closed by ``close``. A stream of events may have no end: it counts as done at once.
        """
        return Stream(self, response, parts, close)

    def conclude_stream(self, response: Response) -> None:
        """Record that there was a response, which cannot be given again; not where it was made of an exception."""
        if self.has_failed(response.status):
            self.give_up()
        self._end(self._setup.policy.not_kept(response))

    def give_up(self) -> None:
        """Let the request run again, unless it has ended."""
        if not self._ended:
            self._ended = True
            self._desk.let_go(self.keyed)
            self._desk.drive(self._setup.clerk.give_up(self.keyed.entry))

    def _end(self, record: Response) -> Response | None:
        if self._ended:
            return None
        instead = self._desk.drive(self._setup.clerk.conclude(self.keyed, record))
        self._ended = True
        self._desk.let_go(self.keyed)
        return instead


class Stream:
    """A response's parts as they come, on their way to the server, which closes it in the end."""

    def __init__(self, run: KeyedRun, response: Response, parts: Iterator[bytes], close: Callable[[], None]) -> None:
        self._run = run
        self._response = response
        self._parts = self._recorded(parts)
        self._close = close
        self._turn = threading.Lock()  # Django draws in one thread, and closes in another when the client goes

    def __iter__(self) -> Iterator[bytes]:
        """It is its own iterator."""
        return self

    def __next__(self) -> bytes:
        """The next part."""
        with self._turn:
            return next(self._parts)

    def close(self) -> None:
        """The server has sent all, or stopped because the client has gone."""
        given_up = time.monotonic() + (0 if is_endless(self._response.headers) else PATIENCE)
        try:
            while time.monotonic() < given_up and next(self, None) is not None:
                pass
            self._run.conclude_stream(self._response)
        finally:
            with self._turn:
                self._parts.close()
                self._close()

    def _recorded(self, parts: Iterator[bytes]) -> Generator[bytes]:
        with self._run.failing():
            last = next(parts, b"")
            for part in parts:
                yield last
                last = part
            self._run.conclude_stream(self._response)
        yield last
