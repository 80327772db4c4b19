"""A receiver of webhooks."""

from __future__ import annotations

import http.client
import sys
from pathlib import Path

from tests.services.service import Service

PROGRAM = Path(__file__).with_name("receiver_program.py")
LARGEST = 1024 * 1024


class Receiver(Service):
    """Keeps what it is sent in a file, and answers 404 for topics that were not declared."""

    title = "Webhook receiver"

    def require(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        return [sys.executable, PROGRAM, str(self.port), str(LARGEST)]

    def ping(self) -> None:
        self.request("GET", "/")

    def request(self, method: str, path: str) -> bytes:
        """One request of a test's own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path)
            return connection.getresponse().read()
        finally:
            connection.close()
