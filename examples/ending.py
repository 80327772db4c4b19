"""How an example ends before its time: on SIGTERM or Ctrl-C, with all that it has started, and without a traceback."""

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
PATIENCE = 20.0
"""Seconds that a process has for ending by itself."""

Process = subprocess.Popen[bytes]


class Told:
    """Which signal has come that was not obeyed yet, if any, and whether it has to wait."""

    def __init__(self) -> None:
        self.signal = 0
        self.waits = False

    def hear(self, number: int, _frame: object) -> None:
        """Handle a signal. Once is enough: those that follow would only disturb the end."""
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        self.signal = number
        self.obey()

    def obey(self) -> None:
        """Raise `SystemExit`, with the code that shells give: 130 after Ctrl-C, 143 after SIGTERM."""
        if self.signal and not self.waits:
            number, self.signal = self.signal, 0
            logging.disable()  # a library that is just closing a connection would complain of the exception
            raise SystemExit(128 + number)


_TOLD = Told()


def in_order(play: Callable[[Path], int], prefix: str) -> int:
    """Play, in a directory that is gone afterwards. A signal ends it as if `sys.exit` were called where it is."""
    with held_back():
        for number in SIGNALS:
            signal.signal(number, _TOLD.hear)
        with tempfile.TemporaryDirectory(prefix=prefix) as directory, held_back(waits=False):
            return play(Path(directory))


@contextmanager
def held_back(*, waits: bool = True) -> Iterator[Told]:
    """In the main thread: a signal that comes in the block takes effect at its end."""
    before, _TOLD.waits = _TOLD.waits, waits
    try:
        _TOLD.obey()
        yield _TOLD
    finally:
        _TOLD.waits = before
        _TOLD.obey()


def start(stack: ExitStack, command: Sequence[str], **options: Any) -> Process:
    """Start a program that ends with the stack. Ctrl-C at the terminal does not reach it: ending it is our task."""
    with held_back():
        process = subprocess.Popen(command, process_group=0, **options)
        stack.callback(end, process)
    return process


def call(command: Sequence[str]) -> None:
    """Run a program to its end, in silence. Ctrl-C at the terminal does not reach it; hold signals back meanwhile."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, process_group=0)


def end(process: Process) -> None:
    """End a process in order, and by force where it takes too long; nothing happens to one that has ended."""
    with held_back():
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
