"""Controls a supervisor process from the test run: see `supervisor_program`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping, Sequence

PROGRAM = Path(__file__).with_name("supervisor_program.py")
STOP_TIMEOUT = 60  # seconds for a supervisor to stop its server and end


class Supervisor:
    """A process that runs one server in a temporary directory, and that takes both away when this process ends."""

    def __init__(self, *, user: str | None, environment: Mapping[str, str]) -> None:
        self._as = {"user": user, "environment": dict(environment)}
        self._process = subprocess.Popen(
            [sys.executable, PROGRAM, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal reaches only the tests, which close everything
        )
        self.directory = Path(self._read()["directory"])

    def run(self, command: Sequence[str | Path]) -> int:
        """Run a program to its end and return its exit code; its output goes to the log."""
        return int(self._request("run", command=[str(word) for word in command], **self._as)["code"])

    def start(self, command: Sequence[str | Path], stop_signal: signal.Signals) -> int:
        """Start the server and return its process id."""
        words = [str(word) for word in command]
        return int(self._request("start", command=words, stop_signal=int(stop_signal), **self._as)["pid"])

    def exit_code(self) -> int | None:
        """Return None while the server runs."""
        code: int | None = self._request("status")["code"]
        return code

    def stop(self) -> None:
        """End the server in order."""
        self._request("stop")

    def kill(self) -> None:
        """End the server and its children with SIGKILL."""
        self._request("kill")

    def close(self) -> None:
        """End the server in order, remove the directory, end the supervisor."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(STOP_TIMEOUT)
        self._process.stdout.close()

    def log(self) -> str:
        """Return what the server and the programs before it have printed."""
        file = self.directory / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def _request(self, do: str, **details: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the supervisor ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
