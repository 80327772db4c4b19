"""Shut an example down on SIGTERM or Ctrl-C: end everything that it started, without a traceback."""

from __future__ import annotations

import logging
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIMEOUT = 20.0
"""Seconds for a process to end by itself."""

Process = subprocess.Popen[Any]


class PendingSignal:
    """A signal that has arrived and not taken effect yet, and whether it is deferred."""

    def __init__(self) -> None:
        self.signal = 0
        self.deferred = False

    def handle(self, number: int, _frame: object) -> None:
        """Handle a signal. Later ones are ignored: they would only disturb the shutdown."""
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        self.signal = number
        self.exit_if_due()

    def exit_if_due(self) -> None:
        """Raise `SystemExit` with the usual exit code: 130 after Ctrl-C, 143 after SIGTERM."""
        if self.signal and not self.deferred:
            number, self.signal = self.signal, 0
            logging.disable()  # a library that is closing a connection would log the exception
            raise SystemExit(128 + number)


_pending = PendingSignal()


def run_until_signal(main: Callable[[Path], int], prefix: str) -> int:
    """Run `main` in a temporary directory. A signal acts like a call of `sys.exit` where the program is."""
    with signals_deferred():
        for number in SIGNALS:
            signal.signal(number, _pending.handle)
        with tempfile.TemporaryDirectory(prefix=prefix) as directory, signals_deferred(deferred=False):
            return main(Path(directory))


@contextmanager
def signals_deferred(*, deferred: bool = True) -> Iterator[PendingSignal]:
    """In the main thread: let a signal that arrives in the block take effect at its end."""
    before, _pending.deferred = _pending.deferred, deferred
    try:
        _pending.exit_if_due()
        yield _pending
    finally:
        _pending.deferred = before
        _pending.exit_if_due()


def start(stack: ExitStack, command: Sequence[str], **options: Any) -> Process:
    """Start a program that ends with the stack. Ctrl-C in the terminal does not reach it: we end it ourselves."""
    with signals_deferred():
        process = subprocess.Popen(command, process_group=0, **options)
        stack.callback(end, process)
    return process


def call(command: Sequence[str]) -> None:
    """Run a program silently to its end. Ctrl-C in the terminal does not reach it; defer signals meanwhile."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, process_group=0)


def end(process: Process) -> None:
    """Terminate a process, by force if it takes too long. Does nothing if it has ended."""
    with signals_deferred():
        process.terminate()
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
