"""Several relay processes on one machine: started, minded and stopped together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import typer

from postroom.cli.relay import SUPERVISED
from postroom.cli.running import WRONG_USAGE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

SHORTEST_LIFE = 10.0
"""Seconds: a process that says sooner that it failed could not even start, which may take long on a busy machine."""
LOOK = 0.1


class Child:
    """One relay process. It ends when its standard input does, so that none outlives its parent."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "postroom", "relay", "--worker", name, *arguments]
        self.name = name
        self.start()

    def start(self) -> None:
        """Start it, for the first time or again."""
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - this program, with the options that it was given
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, SUPERVISED: "1"},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on once
        )

    def failed_to_start(self) -> bool:
        """Whether it ended in failure as soon as it was there, and would the next time. One that was killed did not."""
        code = self.process.returncode
        return code == WRONG_USAGE or (code > 0 and time.monotonic() - self.started_at < SHORTEST_LIFE)


class Supervisor:
    """Starts processes again that die, and stops all on a signal."""

    def __init__(self, names: Sequence[str], arguments: Sequence[str]) -> None:
        self._signals = 0
        self._before = {number: signal.signal(number, self._pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
        self._children = [Child(name, arguments) for name in names]

    def run(self) -> int:
        """Return when all have ended: 0, or the exit code of one that could not start."""
        worst = 0
        while running := [child for child in self._children if child.process.poll() is None]:
            for child in self._children:
                if child.process.returncode and not self._signals and not worst:
                    if child.failed_to_start():
                        worst = child.process.returncode
                        self._stop(signal.SIGTERM)
                    else:
                        typer.echo(f"relay {child.name} ended with {child.process.returncode}: started again", err=True)
                        child.start()
            time.sleep(LOOK if running else 0)
        codes = [child.process.returncode for child in self._children]
        return worst or max((abs(code) for code in codes if code), default=0) * (not self._signals)

    def close(self) -> None:
        """Leave no process behind."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()
            if child.process.stdin:
                child.process.stdin.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._stop(signal.Signals(number))

    def _stop(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(number)


def supervise(count: int, worker: str | None, arguments: Sequence[str]) -> int:
    """Run so many relay processes until all have ended; returns the exit code."""
    stem = worker or f"{socket.gethostname()}:{os.getpid()}"
    supervisor = Supervisor([f"{stem}-{number}" for number in range(1, count + 1)], arguments)
    try:
        return supervisor.run()
    finally:
        supervisor.close()
