"""The demo's relays: processes of their own, all of them gone when the demo has ended, however it ends."""

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
"""Seconds: short, lest one has to wait long for the end of a dead relay's leases."""
PATIENCE = 10.0
"""Seconds that a relay has to stop in; it gives up by itself before."""
ENVIRONMENT = {
    "OUTBOX_LOCK_LEASE_SEC": str(LEASE),
    "OUTBOX_LANE_LEASE_SEC": str(LEASE),
    "OUTBOX_POLL_INTERVAL_SEC": "0.1",
}


class DemoFailed(PostroomError):
    """The demo did not go as it must."""


class Fleet:
    """Relays by their names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._relays: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a relay. Ctrl-C does not reach it; it ends with its input, which is a pipe from here."""
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
        """SIGKILL: it cannot finish anything."""
        relay = self._relays.pop(name)
        relay.kill()
        _reap(relay)

    def names(self) -> list[str]:
        """The relays that run."""
        return list(self._relays)

    def check(self) -> None:
        """Raise `DemoFailed` where a relay has ended by itself."""
        for name, relay in self._relays.items():
            if relay.poll() is not None:
                raise DemoFailed(f"{name} ended with {relay.returncode}: {self._last_words(name)}")

    def stop(self) -> None:
        """Let every relay finish what it is doing."""
        for relay in self._relays.values():
            if relay.stdin:
                relay.stdin.close()
        for relay in self._relays.values():
            with suppress(subprocess.TimeoutExpired):
                relay.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for relay in self._relays.values():
            relay.kill()
        for relay in self._relays.values():
            _reap(relay)

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        said = (line.strip(" |+-") for line in reversed(lines))  # the frame that Python draws around a group of errors
        return next(filter(None, said), "without a word")

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"


def _reap(relay: subprocess.Popen[bytes]) -> None:
    if relay.stdin:
        with suppress(OSError):
            relay.stdin.close()
    relay.wait()
