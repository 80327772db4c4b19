"""Workers as processes of their own, which can be paused and killed, and whose errors reach the test."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.services.pauses import pause
from tests.services.suspending import is_suspended

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess
    from multiprocessing.synchronize import Barrier

PATIENCE = 60.0
"""Seconds that a condition may take to come true on a slow machine."""
POLL = 0.01

IMPORTED = [
    "tests.crash.billing",
    "tests.crash.claim_worker",
    "tests.crash.keyed_worker",
    "tests.crash.order_worker",
    "tests.crash.relay_worker",
    "tests.crash.saga_worker",
    "tests.crash.stream",
    "tests.crash.stream_worker",
    "tests.crash.twophase_bank",
    "postroom.relay.sagas",
    "postroom.sources.nats",
    "tests.contract.store_drivers",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "asyncpg",
    "psycopg",
    "pymysql",
]
"""What takes a worker a second to import."""

# A process that has imported all this makes the workers, so that one is there within milliseconds.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)


def wait_until(condition: Callable[[], object], what: str, progress: Callable[[], object] = bool) -> None:
    """Return as soon as the condition holds; fail, saying what was waited for, when it does not.

    With `progress`, only a standstill is a failure: it returns something else as long as there is progress.
    """
    deadline, seen = time.monotonic() + PATIENCE, progress()
    asked = time.monotonic()
    while not condition():
        if (now := progress()) != seen:
            deadline, seen = time.monotonic() + PATIENCE, now
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s in vain: {what}"
        time.sleep(pause(asked, POLL))
        asked = time.monotonic()


class Worker:
    """One worker process."""

    def __init__(self, name: str, process: ForkServerProcess, errors: Path) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def stopped(self) -> bool:
        """Say whether the process is paused."""
        return not self.ended() and is_suspended(self._pid)

    def ended(self) -> bool:
        return not self._process.is_alive()

    def killed(self) -> bool:
        """Say whether the process has ended by SIGKILL."""
        return self.ended() and self._process.exitcode == -signal.SIGKILL

    def check(self) -> None:
        """Fail with the process's error when it ended with one."""
        code = self._process.exitcode
        assert not code, f"{self.name} ended with {code}: {self._error()}"

    def join(self) -> None:
        """Wait for the process to end; fail with its error when it ended with one."""
        self._process.join(PATIENCE)
        assert self.ended(), f"{self.name} does not end"
        self.check()

    def can_be_told(self) -> bool:
        """Say whether SIGTERM would end it in order: before it listens, the signal kills."""
        with contextlib.suppress(FileNotFoundError):
            [caught] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{self._pid}/status").read_text(), re.MULTILINE)
            return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
        return False

    def close(self) -> None:
        """End the process if it is still there."""
        self._process.kill()
        self._process.join()
        self._process.close()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def _error(self) -> str:
        return self._errors.read_text() if self._errors.exists() else "no error was reported"


def dismiss(*workers: Worker) -> None:
    """Have them end, in order."""
    for one in workers:
        wait_until(lambda: one.ended() or one.can_be_told(), f"{one.name} listens")  # noqa: B023 - called at once
        one.signal(signal.SIGTERM)
    for one in workers:
        one.join()


class Processes:
    """Starts workers, and leaves none behind. A worker's errors and logs are in files of the directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._workers: list[Worker] = []

    def start(self, name: str, work: Callable[..., None], *args: Any) -> Worker:
        """Run `work(name, *args)` in a process of its own."""
        errors = self.directory / f"{name}.error"
        process = CONTEXT.Process(target=_reporting, args=(errors, work, name, *args), daemon=True)
        with patch.dict(os.environ):
            # Workers that are killed report no coverage, and the process that makes them only after the test run.
            os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
            process.start()
        worker = Worker(name, process, errors)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def barrier(parties: int) -> Barrier:
    """Let so many processes begin together."""
    return CONTEXT.Barrier(parties)


def _reporting(errors: Path, work: Callable[..., None], *args: Any) -> None:
    try:
        work(*args)
    except BaseException:
        errors.write_text(traceback.format_exc())
        raise
