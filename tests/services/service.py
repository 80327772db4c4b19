"""A server that tests start: the base class."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

import psutil

from tests.services.ports import free_port
from tests.services.supervisor import Supervisor
from tests.services.suspending import suspend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_TIMEOUT = 60  # seconds for a server to answer after it was started
POLL = 0.05  # seconds between two tries


class Unavailable(Exception):
    """The server is not available on this machine; the message says why."""


class ServiceFailed(Exception):
    """The server did not start; the message ends with its log."""


class Service(ABC):
    """A server of our own: on a free port of 127.0.0.1, in a temporary directory, gone after the test run.

    A subclass says how to get it (`require`), how to prepare its directory, which command starts it and how to
    tell that it answers. `start` after `stop` continues on the same port and data.
    """

    title: ClassVar[str]
    is_optional: ClassVar[bool] = False
    """Whether CI may do without it: then its tests are skipped, and the summary says so."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    user: str | None = None  # the user that runs it; None: the one who runs the tests

    def __init__(self) -> None:
        self.port = free_port()
        self.pid = 0
        self._supervisor: Supervisor | None = None

    @property
    def directory(self) -> Path:
        """Where the server keeps everything. It exists from the first start until `close`."""
        return self._running.directory

    def start(self) -> None:
        """Return when the server answers; raise `Unavailable` or `ServiceFailed` and leave nothing behind."""
        if self._supervisor is None:
            self.require()
            self._supervisor = Supervisor(user=self.user, environment=self.environment())
            try:
                self.prepare()
            except BaseException:
                self.close()
                raise
        self.pid = self._supervisor.start(self.command(), self.stop_signal)
        try:
            self._await_answer()
        except BaseException:
            self.close()
            raise

    def stop(self, *, kill: bool = False) -> None:
        """End the server, in order or as a crash would; its data stay for the next `start`."""
        if kill:
            self._running.kill()
        else:
            self._running.stop()

    @contextmanager
    def hung(self) -> Iterator[None]:
        """Suspend the server and everything it started; the system still accepts connections for it."""
        server = psutil.Process(self.pid)
        try:
            suspend(server)  # first, so that it starts nothing else meanwhile
            for process in server.children(recursive=True):
                suspend(process)
            yield
        finally:
            for process in (*server.children(recursive=True), server):
                process.resume()

    def close(self) -> None:
        """End the server and remove its data. Nothing happens when it was never started."""
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None

    def run(self, *command: str | Path) -> None:
        """Run a program as the server's user; raise `ServiceFailed` when it fails."""
        if self._running.run(command) != 0:
            raise ServiceFailed(f"{command[0]} failed:\n{self._log_tail()}")

    def environment(self) -> dict[str, str]:
        """Return the server's environment: nothing of the caller's that could change how it behaves."""
        return {"PATH": os.defpath + ":/usr/sbin:/sbin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}

    @abstractmethod
    def require(self) -> None:
        """Find the server, or install it if permitted; raise `Unavailable` otherwise."""

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
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError(f"{self.title} has not been started")
        return self._supervisor

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            try:
                self.ping()
            except Exception as error:  # a server that is coming up refuses in many ways
                code = self._running.exit_code()
                if code is not None:
                    raise ServiceFailed(f"{self.title} ended with code {code}:\n{self._log_tail()}") from error
                if time.monotonic() > deadline:
                    raise ServiceFailed(f"{self.title} does not answer: {error}\n{self._log_tail()}") from error
                time.sleep(POLL)
            else:
                return

    def _log_tail(self) -> str:
        return "\n".join(self._running.log().splitlines()[-20:])


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
