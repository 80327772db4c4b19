"""An example that is told to end does: at once, without a traceback, and with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import pytest

from examples.waiting import wait_until
from tests.acceptance.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = "EXAMPLE_UNDER_TEST"
SECONDS = 60
"""A bound for a machine that does much else; it takes about one."""
ORDERS = ["examples.orders"]
NATS = ["examples.choreography"]
SAGA = ["examples.saga"]
MEMORY = ["examples.choreography", "--memory", "--orders", "300"]


class Example:
    """A running example, in a process group of its own as a terminal gives it one."""

    def __init__(self, directory: Path, arguments: list[str]) -> None:
        self._mark = uuid4().hex
        self._printed = directory / "printed"
        self.directory = directory / "temporary"
        self.directory.mkdir()
        environment = {"TMPDIR": str(self.directory), "PYTHONUNBUFFERED": "1", MARK: self._mark}
        with self._printed.open("w") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=printed,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
            )

    def processes(self) -> list[psutil.Process]:
        """All that it has started and that run, itself among them; also those whose parent has gone."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_for(self, words: str) -> None:
        """Wait until it has said so; without words, until it has started its first process."""
        if words:
            wait_until(lambda: words in self._printed.read_text(), f"it says: {words}")
        else:
            wait_until(lambda: len(self.processes()) > 1, "it has begun")

    def told(self, number: signal.Signals) -> tuple[int, str]:
        """What it ends with, and what it complains of, when it is sent the signal: Ctrl-C goes to the whole group."""
        send = os.killpg if number == signal.SIGINT else os.kill
        send(self.process.pid, number)
        _, complaints = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, complaints

    def close(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.communicate()


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Example]:
    example = Example(tmp_path, request.param)
    yield example
    example.close()


@pytest.mark.parametrize(
    ("example", "words", "number"),
    [
        pytest.param(ORDERS, "", signal.SIGTERM, id="orders, begun"),
        pytest.param(ORDERS, "Orders are taken at", signal.SIGINT, id="orders"),
        pytest.param(ORDERS, "when a relay has brought it", signal.SIGTERM, id="orders with a relay"),
        pytest.param(NATS, "", signal.SIGINT, id="choreography, begun"),
        pytest.param(NATS, "are placed", signal.SIGTERM, id="choreography"),
        pytest.param(MEMORY, "are at work", signal.SIGINT, id="choreography in memory"),
        pytest.param(SAGA, "orders are placed", signal.SIGINT, id="saga"),
    ],
    indirect=["example"],
)
def test_E_1_E_2_an_example_that_is_told_to_end_leaves_nothing(
    example: Example, words: str, number: signal.Signals
) -> None:
    example.wait_for(words)
    assert example.told(number) == (128 + number, "")
    assert example.processes() == []
    assert list(example.directory.iterdir()) == []
