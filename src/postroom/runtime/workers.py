"""Worker names: by which one process is told from all others in the tables, logs and metrics."""

from __future__ import annotations

import os
import socket


def worker_name(of: object) -> str:
    """A name for a relay or consumer that was given none: its host, its process, and which one in there."""
    return f"{socket.gethostname()}:{os.getpid()}:{id(of):x}"
