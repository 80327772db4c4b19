"""Kafka as librdkafka's mock cluster has it: real sockets and the real protocol, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tests.services.service import Service, Unavailable

PROGRAM = Path(__file__).with_name("kafka_program.py")


class Kafka(Service):
    """Three brokers. They keep their messages while they are down, which is all that stopping does."""

    title = "Kafka (mock cluster)"

    def require(self) -> None:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise Unavailable("the package confluent-kafka is not installed")

    def prepare(self) -> None:
        pass

    def command(self) -> list[str | Path]:
        return [sys.executable, PROGRAM]

    def start(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGUSR2)
            self._await_answer()
        else:
            super().start()

    def stop(self, *, kill: bool = False) -> None:
        del kill
        os.kill(self.pid, signal.SIGUSR1)

    def refuse_next(self, error: int) -> None:
        """Have the next request to produce answered with an error."""
        file = self.directory / "error"
        file.write_text(str(error))
        os.kill(self.pid, signal.SIGHUP)
        while file.exists():
            time.sleep(0.005)

    def ping(self) -> None:
        for place in self.places():
            with socket.create_connection(place, timeout=5):
                pass

    def places(self) -> list[tuple[str, int]]:
        """Hosts and ports of the brokers."""
        text = (self.directory / "brokers").read_text()
        assert text.endswith("\n"), "it is still being written"
        return [(host, int(port)) for host, _, port in (place.partition(":") for place in text.strip().split(","))]
