"""The demo's relays: processes that all end with the demo, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from postroom.errors import PostroomError

LEASE = 5
"""Seconds: short, because the demo waits until the leases of a killed relay end."""
STOPPING = 10.0
"""Seconds that a relay has to stop; it gives up by itself before."""
ENVIRONMENT = {
    "OUTBOX_LOCK_LEASE_SEC": str(LEASE),
    "OUTBOX_LANE_LEASE_SEC": str(LEASE),
    "OUTBOX_POLL_INTERVAL_SEC": "0.1",
}


class DemoFailed(PostroomError):
    """The demo did not run as it must."""


class RelayProcesses:
    """The relays, by name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._relays: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a relay. Ctrl-C does not reach it; it ends when its standard input, a pipe from here, is closed."""
        with self._log(name).open("wb") as log:
            self._relays[name] = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "postroom.cli.demo.relay", str(self._directory), name],
                env={**os.environ, **ENVIRONMENT},
                cwd=self._directory,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill it with SIGKILL, so that it cannot finish anything."""
        relay = self._relays.pop(name)
        relay.kill()
        _reap(relay)

    def names(self) -> list[str]:
        """The relays that run."""
        return list(self._relays)

    def check(self) -> None:
        """Raise `DemoFailed` if a relay has ended by itself."""
        for name, relay in self._relays.items():
            if relay.poll() is not None:
                raise DemoFailed(f"{name} ended with {relay.returncode}: {self._last_line(name)}")

    def stop(self) -> None:
        """Let every relay finish what it is doing."""
        for relay in self._relays.values():
            if relay.stdin:
                relay.stdin.close()
        for relay in self._relays.values():
            with suppress(subprocess.TimeoutExpired):
                relay.wait(STOPPING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for relay in self._relays.values():
            relay.kill()
        for relay in self._relays.values():
            _reap(relay)

    def _last_line(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        said = (
            line.strip(" |+-") for line in reversed(lines)
        )  # without the frame that Python draws around exception groups
        return next(filter(None, said), "no output")

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def _reap(relay: subprocess.Popen[bytes]) -> None:
    if relay.stdin:
        with suppress(OSError):
            relay.stdin.close()
    relay.wait()
