"""What every server that the tests start has in common."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import psutil

from tests.services.keeper import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PATIENCE = 60  # seconds for a server to answer after its start
POLL = 0.05  # seconds between two tries
# Below the range that systems hand out to outgoing connections: the port is still free after a crash and restart.
PORTS = range(20_000, 30_000)
# Each worker of a run has ports of its own, so that two that look at the same moment cannot find the same one free.
SHARES = 16


class Unavailable(Exception):
    """The server cannot be had on this machine; the message says why."""


class ServiceFailed(Exception):
    """The server is there but did not start; the message ends with its log."""


class Service(ABC):
    """A server of our own: on a free port of 127.0.0.1, in a temporary directory, gone after the test run.

    A subclass says how to get it (`require`), how to prepare its directory, which command starts it and how to
    tell that it answers. `start` after `stop` continues on the same port and data.
    """

    title: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: str | None = None  # the user that runs it; None: the one who runs the tests

    def __init__(self) -> None:
        self.port = free_port()
        self.pid = 0
        self._keeper: Keeper | None = None

    @property
    def directory(self) -> Path:
        """Where the server keeps everything. It exists from the first start until `close`."""
        return self._kept.directory

    def start(self) -> None:
        """Return when the server answers; raise `Unavailable` or `ServiceFailed` and leave nothing behind."""
        if self._keeper is None:
            self.require()
            self._keeper = Keeper(user=self.user, environment=self.environment())
            try:
                self.prepare()
            except BaseException:
                self.close()
                raise
        self.pid = self._keeper.start(self.command(), self.stop_signal)
        try:
            self._await_answer()
        except BaseException:
            self.close()
            raise

    def stop(self, *, kill: bool = False) -> None:
        """End the server, in order or as a crash would; its data stay for the next `start`."""
        if kill:
            self._kept.kill()
        else:
            self._kept.stop()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """The server, with all that it has started, does nothing; the system still takes connections for it."""
        server = psutil.Process(self.pid)
        server.suspend()  # first, so that it starts nothing more meanwhile
        processes = [server, *server.children(recursive=True)]
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in reversed(processes):
                process.resume()

    def close(self) -> None:
        """End the server and remove its data. Nothing happens when it was never started."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def run(self, *command: str | Path) -> None:
        """Run a program as the server's user; raise `ServiceFailed` when it fails."""
        if self._kept.run(command) != 0:
            raise ServiceFailed(f"{command[0]} failed:\n{self._log_tail()}")

    def environment(self) -> dict[str, str]:
        """Return the server's environment: nothing of the caller's that could change how it behaves."""
        return {"PATH": os.defpath + ":/usr/sbin:/sbin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}

    @abstractmethod
    def require(self) -> None:
        """Find the server, or get it where that is permitted; raise `Unavailable` otherwise."""

    @abstractmethod
    def prepare(self) -> None:
        """Fill `directory` before the first start."""

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def ping(self) -> None:
        """Return when the server answers, raise anything when it does not."""

    @property
    def _kept(self) -> Keeper:
        if self._keeper is None:
            raise RuntimeError(f"{self.title} has not been started")
        return self._keeper

    def _await_answer(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.ping()
            except Exception as error:  # a server that is coming up refuses in many ways
                code = self._kept.exit_code()
                if code is not None:
                    raise ServiceFailed(f"{self.title} ended with code {code}:\n{self._log_tail()}") from error
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"{self.title} does not answer: {error}\n{self._log_tail()}") from error
                time.sleep(POLL)
            else:
                return

    def _log_tail(self) -> str:
        return "\n".join(self._kept.log().splitlines()[-20:])


class DatabaseService(Service):
    """A database server on which tests make databases of their own."""

    @abstractmethod
    def url(self, database: str) -> str:
        """Return the database's URL over TCP."""

    @abstractmethod
    def socket_url(self, database: str) -> str:
        """Return the database's URL over the server's unix socket."""

    @abstractmethod
    def create_database(self, name: str) -> None:
        """Create an empty database."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop the database, even when somebody is still connected to it."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    # The system's randomness: Hypothesis seeds Python's, which would give every run the same ports.
    for port in random.SystemRandom().sample(PORTS[worker % SHARES :: SHARES], k=100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServiceFailed(f"no free port found between {PORTS.start} and {PORTS.stop}")
