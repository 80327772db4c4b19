"""A process that supervises one server for a test run, so that the server never outlives the run.

It makes a temporary directory, handles requests that arrive on stdin as lines of JSON (`run`, `start`, `status`,
`stop`, `kill`) and answers each with a line on stdout. When stdin closes or the test process is gone, for
whatever reason (the end, Ctrl-C, SIGKILL), it stops the server and removes the directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_TIMEOUT = 20  # seconds for a server to end
CHECK_EVERY = 0.5  # seconds between two checks of the test process


class Supervisor:
    """One server's process and directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server: subprocess.Popen[bytes] | None = None
        self.stop_signal = signal.SIGTERM

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request and return the answer."""
        match request["do"]:
            case "run":
                return {"code": self._open(request).wait()}
            case "start":
                self.stop_signal = signal.Signals(request["stop_signal"])
                self.server = self._open(request)
                return {"pid": self.server.pid}
            case "status":
                return {"code": self.server.poll() if self.server else None}
            case "stop":
                self.stop()
            case "kill":
                self.kill()
            case unknown:
                raise ValueError(f"no such request: {unknown}")
        return {}

    def stop(self) -> None:
        """Ask the server to end; kill it when it does not."""
        if self.server is None or self.server.poll() is not None:
            return
        self.server.send_signal(self.stop_signal)
        try:
            self.server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill the server and all that it started, at once, as a crash would."""
        if self.server is None or self.server.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.server.pid)
            server.suspend()  # so that it starts nothing more meanwhile
            victims = [server, *server.children(recursive=True)]
            for victim in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
            self.server.wait()
            psutil.wait_procs(victims[1:], timeout=STOP_TIMEOUT)

    def _open(self, request: dict[str, Any]) -> subprocess.Popen[bytes]:
        user = request["user"]
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                request["command"],
                env=request["environment"],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
            )


def requests(test_process: int) -> Iterator[dict[str, Any]]:
    """Yield the requests until stdin closes or the test process is gone.

    Both, because a process that the tests forked may hold the other end of stdin open.
    """
    with open(0, "rb", buffering=0) as stdin:
        while os.getppid() == test_process:
            if select.select([stdin], [], [], CHECK_EVERY)[0]:
                line = stdin.readline()
                if not line:
                    return
                yield json.loads(line)


def answer(value: dict[str, Any]) -> None:
    """Write one line to the test process."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Keep one server until the test process lets go or dies."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    supervisor = Supervisor(Path(tempfile.mkdtemp(prefix="postroom-")))
    try:
        answer({"directory": str(supervisor.directory)})
        for request in requests(test_process=int(sys.argv[1])):
            answer(supervisor.handle(request))
    except BrokenPipeError:
        pass  # the test process is gone; nobody reads the answer
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        supervisor.stop()
        shutil.rmtree(supervisor.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
