"""A wire to a server, on which everything can be held up, or one answer lost."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sqlalchemy import make_url

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 65536


class Wire:
    """Listens on a port of its own; what comes there goes to the server of the URL, and back."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._to = (str(parsed.host), int(parsed.port or 0))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = str(parsed.set(host="127.0.0.1", port=self._listening.getsockname()[1]))
        self.lost = 0
        """How many answers did not arrive."""
        self._flows = threading.Event()
        self._flows.set()
        self._fatal = b""
        threading.Thread(target=self._accept, daemon=True).start()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing arrives, and nothing is refused, as with a server that hangs."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def lose_answer_to(self, fatal: bytes) -> None:
        """The next request that holds these bytes arrives; then the connection breaks."""
        self._fatal = fatal

    def lead_to(self, url: str) -> None:
        """New connections end there."""
        parsed = make_url(url)
        self._to = (str(parsed.host), int(parsed.port or 0))

    def close(self) -> None:
        """Take no further connections; those that are there end with one of their ends."""
        self._flows.set()
        self._listening.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listening, suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(self._to)
                except OSError:  # the server is away
                    near.close()
                else:
                    _Line(near, far, self)

    def is_fatal(self, data: bytes) -> bool:
        """Say whether the answer to this is to be lost."""
        is_fatal = bool(self._fatal) and self._fatal in data
        if is_fatal:
            self._fatal = b""
        return is_fatal

    def forward(self, data: bytes, target: socket.socket) -> None:
        """Send it on."""
        self._flows.wait()
        target.sendall(data)


class _Line:
    """One connection, and a thread for each direction."""

    def __init__(self, near: socket.socket, far: socket.socket, wire: Wire) -> None:
        self._near, self._far, self._wire = near, far, wire
        self._is_doomed = False
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        with self._near, self._far:
            back = threading.Thread(target=self._back, daemon=True)
            back.start()
            with suppress(OSError):
                while data := self._near.recv(CHUNK):
                    if self._wire.is_fatal(data):  # known before it is sent on: the answer may come at once
                        self._is_doomed = True
                    self._wire.forward(data, self._far)
            self._hang_up()
            back.join()

    def _back(self) -> None:
        with suppress(OSError):
            while data := self._far.recv(CHUNK):
                if self._is_doomed:
                    self._wire.lost += 1
                    break
                self._wire.forward(data, self._near)
        self._hang_up()

    def _hang_up(self) -> None:
        for end in (self._near, self._far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
