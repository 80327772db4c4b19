"""Free ports for servers: no two processes of this user on this machine are given the same one."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below the range that systems use for outgoing connections: the port is still free after a crash and restart.
PORTS = range(20_000, 30_000)
# Lines of port and process id. A port is reserved until the process that asked for it ends.
RESERVATIONS = Path(tempfile.gettempdir()) / f"postroom-test-ports-{os.getuid()}"


def free_port() -> int:
    """Reserve a port of 127.0.0.1 on which nothing listens, for as long as this process lives."""
    with _reservations() as reserved:
        # The system's randomness: Hypothesis seeds Python's, which would try the same ports in every run.
        for port in random.SystemRandom().sample(PORTS, k=len(PORTS)):
            if port not in reserved and _can_bind(port):
                reserved[port] = os.getpid()
                return port
    raise RuntimeError(f"no free port found between {PORTS.start} and {PORTS.stop}")


@contextmanager
def _reservations() -> Iterator[dict[int, int]]:
    """The reservations of all live processes, locked and written back."""
    with RESERVATIONS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = (line.split() for line in file)
        reserved = {int(port): int(process) for port, process in found if psutil.pid_exists(int(process))}
        yield reserved
        file.truncate(0)
        file.writelines(f"{port} {process}\n" for port, process in reserved.items())


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
