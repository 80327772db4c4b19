"""Redis, from Debian's packages."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tests.services.packages import require_programs
from tests.services.service import Service

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1024 * 1024


class Redis(Service):
    """A Redis server that writes everything to disk before it answers."""

    title = "Redis"

    def __init__(self) -> None:
        super().__init__()
        self._programs: dict[str, Path] = {}

    def require(self) -> None:
        self._programs = require_programs("redis-server", packages=("redis-server",))

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        return [
            *(self._programs["redis-server"], "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", self.directory, "--appendonly", "yes", "--appendfsync", "always", "--save", ""),
            *("--proto-max-bulk-len", str(LARGEST)),
        ]

    def ping(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(7) == b"+PONG\r\n"
