"""A process of Postroom's with a port of its own, and what it answers there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from tests.services.pauses import pause
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

PATIENCE = 60
POLL = 0.05


class Process:
    """A command that serves its probes."""

    def __init__(
        self, folder: Path, *command: str, port: int | None = None, program: Sequence[str] = ("-m", "postroom")
    ) -> None:
        self.port = port or free_port()
        self._log = folder / f"log-{self.port}"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program, *command, "--http-port", str(self.port)],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=plain_environment(),
            )

    def get(self, page: str, port: int | None = None) -> tuple[int, str]:
        """Status and body; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def problems(self) -> list[str] | None:
        """What it says that it is not ready for; None where it does not answer."""
        status, body = self.get("/readyz")
        if not status:
            return None
        told: dict[str, Any] = json.loads(body)
        assert (status == 503) == bool(told["problems"])
        return list(told["problems"])

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }

    def value(self, name: str, labels: Mapping[str, str] | None = None) -> float | None:
        return self.metrics().get((name, frozenset((labels or {}).items())))

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextmanager
def started(
    folder: Path, *command: str, port: int | None = None, program: Sequence[str] = ("-m", "postroom")
) -> Iterator[Process]:
    """Run it until it is ready, and stop it afterwards."""
    process = Process(folder, *command, port=port, program=program)
    try:
        wait_until(lambda: process.problems() == [] or process.process.poll() is not None, process.log)
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait()


def wait_until(condition: Callable[[], object], told: Callable[[], str] = str) -> None:
    asked = time.monotonic()
    deadline = asked + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {told()}"
        time.sleep(pause(asked, POLL))
        asked = time.monotonic()


def plain_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "OUTBOX_", "BROKER_"))
    }
