"""Run several relay processes on one machine: start, supervise and stop them together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from postroom.cli.output import echo
from postroom.cli.relay import SUPERVISED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

POLL = 0.1
PAUSE = 1.0
"""Seconds between two starts of a process, at least."""
PROGRAM = [sys.executable, "-m", "postroom"]
"""What is started. A framework's own command sets another, which loads the same application."""


class Child:
    """One relay process. It ends when its standard input is closed, so that none outlives its parent."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._command = [*PROGRAM, "relay", "--worker", name, *arguments]
        self.name = name
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - this program, with the options that it was given
            self._command,
            stdin=subprocess.PIPE,
            env={**os.environ, SUPERVISED: "1"},
            start_new_session=True,  # Ctrl-C reaches the parent alone, which passes it on once
        )

    def let_go(self) -> None:
        """Close its standard input, which ends it if it still runs."""
        if self.process.stdin:
            self.process.stdin.close()

    def was_killed(self) -> bool:
        """Whether a signal ended it. A process that fails by itself has said why, and would fail again."""
        return self.process.returncode is not None and self.process.returncode < 0

    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.process.returncode is not None and self.process.returncode > 0


class Supervisor:
    """Restarts processes that were killed; stops all of them on a signal, or when one fails."""

    def __init__(self, arguments: Mapping[str, Sequence[str]]) -> None:
        """`arguments` are those of each process, by its name."""
        self._stopping = False
        self._before = {number: signal.signal(number, self._pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
        self._children = [Child(name, some) for name, some in arguments.items()]

    def run(self) -> int:
        """Return when all have ended: 0, or the exit code of one that failed."""
        while any(child.process.poll() is None or self._to_be_replaced(child) for child in self._children):
            for child in self._children:
                if child.failed() and not self._stopping:
                    self._stop(signal.SIGTERM)
                elif self._to_be_replaced(child) and time.monotonic() >= child.started_at + PAUSE:
                    echo(f"relay {child.name} was killed: started again", err=True)
                    child.let_go()
                    child.start()
            time.sleep(POLL)
        return next((child.process.returncode for child in self._children if child.failed()), 0)

    def _to_be_replaced(self, child: Child) -> bool:
        return child.was_killed() and not self._stopping

    def close(self) -> None:
        """Leave no process behind."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait()
            child.let_go()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stop(signal.Signals(number))

    def _stop(self, number: signal.Signals) -> None:
        self._stopping = True
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(number)


def supervise(count: int, worker: str | None, arguments: Sequence[str], ports: Sequence[int] | None = None) -> int:
    """Run this many relay processes, each with its port, until all have ended; returns the exit code."""
    stem = worker or f"{socket.gethostname()}:{os.getpid()}"
    each = {
        f"{stem}-{number + 1}": [*arguments, *(["--http-port", str(ports[number])] if ports else [])]
        for number in range(count)
    }
    supervisor = Supervisor(each)
    try:
        return supervisor.run()
    finally:
        supervisor.close()
