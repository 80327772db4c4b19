"""``postroom relay`` as a program, and the broker that it is given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

from tests.crash.places import Places
from tests.crash.processes import PATIENCE
from tests.crash.relay_worker import FileBroker

if TYPE_CHECKING:
    import signal

    from postroom import Message

ROOT = Path(__file__).parents[2]
PLACES = "SHOP_PLACES"
PACE = "SHOP_PACE"
"""Seconds that a message takes."""
LITTER = "SHOP_LITTER"
"""Set if only the garbage collector can free a message: as after an exception that its own frame still refers to."""


def publish(message: Message) -> None:
    """The broker: `python:tests.crash.program:publish`."""
    time.sleep(float(os.environ.get(PACE, "0")))
    if LITTER in os.environ:
        cycle: list[object] = [message, *([] for _ in range(20))]  # about as many objects as a traceback refers to
        cycle.append(cycle)
    FileBroker(str(os.getpid()), Places(Path(os.environ[PLACES])), None)(message)


class Program:
    """A relay started from the command line, with quick leases; ended when the block is left."""

    def __init__(self, places: Places, url: str, *arguments: str, **environment: str) -> None:
        self._log = places.directory / "log"
        self._output = places.directory / "output"
        with self._log.open("w") as log, self._output.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "postroom", "relay", "--database", url),
                    *("--lock-lease-sec", "1", "--lane-lease-sec", "1", "--poll-interval-sec", "0.05"),
                    *("--broker", f"python:{__name__}:publish", *arguments),
                ],
                cwd=places.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), PLACES: str(places.directory), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        """What it has printed on standard error."""
        return self._log.read_text()

    @property
    def output(self) -> str:
        """What it has printed on standard output."""
        return self._output.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        return self.process.wait(PATIENCE)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()
