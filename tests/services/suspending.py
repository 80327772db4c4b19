"""Suspend processes, and know that they are."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

PATIENCE = 60  # seconds for a process to stop on a busy machine
POLL = 0.001
STOPPED = "T"
STILL = frozenset({STOPPED, "t", "Z", "X"})  # stopped, also by a tracer, or ended


def suspend(process: psutil.Process) -> None:
    """Return when the process and all its threads stand still.

    The signal alone does not do it: on a busy machine a thread gets another turn, and answers, before the kernel has
    stopped them all.
    """
    process.suspend()
    deadline = time.monotonic() + PATIENCE
    while not thread_states(process.pid) <= STILL:
        assert time.monotonic() < deadline, f"process {process.pid} does not stop within {PATIENCE} s"
        time.sleep(POLL)


def is_suspended(pid: int) -> bool:
    """Say whether the process is there, and all its threads are stopped."""
    return thread_states(pid) == {STOPPED}


def thread_states(pid: int) -> set[str]:
    """What the threads of a process do, each as a letter of proc(5); nothing when the process is gone."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            states.add(thread.read_text().rpartition(")")[2].split()[0])
    return states
