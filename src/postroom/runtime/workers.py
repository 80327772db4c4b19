"""Worker names: what tells one running relay or consumer from all others in tables, logs and metrics."""

from __future__ import annotations

import os
import socket


def worker_name(of: object) -> str:
    """The default name of a relay or consumer: host, process id, and an id within the process."""
    return f"{socket.gethostname()}:{os.getpid()}:{id(of):x}"
