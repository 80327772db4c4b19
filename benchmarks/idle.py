"""The cost of an idle relay: processor time in percent of one core, with nothing to deliver."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.rounds import create_tables
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLING_IN = 3.0
"""Seconds for imports, the first connections and the first heartbeats."""
SECONDS = 15.0


def main() -> None:
    """Measure on SQLite and PostgreSQL, with default polling."""
    print("\nan idle relay")
    with tempfile.TemporaryDirectory(prefix="postroom-") as directory, closing(PostgreSQL()) as server:
        server.start()
        server.create_database("shop")
        urls = {"SQLite": f"sqlite:///{Path(directory) / 'shop.db'}", "PostgreSQL": server.url("shop")}
        for name, url in urls.items():
            create_tables(url)
            with _relay(url) as process:
                time.sleep(SETTLING_IN)
                before = _processor_seconds(process)
                time.sleep(SECONDS)
                share = (_processor_seconds(process) - before) / SECONDS
                memory = process.memory_info().rss / 2**20
            print(f"  {name:<44} {share:>10.2%} of a core   {memory:.0f} MB resident")


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def _relay(url: str) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "postroom", "relay", "--database", url, "--broker", "stdout:"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
