"""A run with two workers: each has servers of its own, what one misses is told at the end, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PATIENCE = 60
WORKERS = 2

# Each worker runs one of them. It says which server it has, and waits to be killed.
WAITING = """
import threading
from pathlib import Path
import pytest
from tests.services import registry
from tests.services.postgresql import PostgreSQL

@pytest.mark.parametrize("number", [0, 1])
def test_server(number):
    server = registry.get(PostgreSQL)
    told = Path(__file__).with_name(f"{number}.new")
    told.write_text(f"{server.pid} {server.port} {server.directory}")
    told.rename(told.with_suffix(".told"))
    threading.Event().wait()
"""
ABSENT = """
import pytest
from tests.services.databases import need
from tests.services.service import Service, Unavailable

class Absent(Service):
    title = "Absent"
    def require(self):
        raise Unavailable("nobody makes it any more")
    prepare = command = ping = lambda self: None

@pytest.mark.parametrize("number", [0, 1])
def test_server(number):
    need(Absent)
"""


def pytest_with_two_workers(directory: Path, tests: str, **environment: str) -> subprocess.Popen[str]:
    (directory / "test_it.py").write_text(tests)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "COVERAGE_"))}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest"),
            *("-p", "no:cacheprovider", f"-n{WORKERS}", "--dist=load", directory),
        ],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a signal to the group is what a terminal's Ctrl-C is
    )


def interrupt(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGINT)


def kill(run: subprocess.Popen[str]) -> None:
    run.kill()


@pytest.mark.parametrize("end", [interrupt, kill])
def test_workers_have_servers_of_their_own_which_end_with_the_run(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], None]
) -> None:
    need(PostgreSQL)
    with pytest_with_two_workers(tmp_path, WAITING) as run:
        await_true(lambda: len(told(tmp_path)) == WORKERS or run.poll() is not None)
        pids, ports, directories = zip(*told(tmp_path), strict=True)
        assert len(set(pids)) == len(set(ports)) == len(set(directories)) == WORKERS
        servers = [psutil.Process(int(pid)) for pid in pids]
        end(run)
        run.communicate(timeout=PATIENCE)
    _, alive = psutil.wait_procs(servers, timeout=PATIENCE)
    assert not alive
    await_true(lambda: not any(Path(directory).exists() for directory in directories))


@pytest.mark.parametrize(("ci", "code"), [("false", pytest.ExitCode.OK), ("true", pytest.ExitCode.TESTS_FAILED)])
def test_what_workers_miss_is_told_once_and_fails_under_ci(tmp_path: Path, ci: str, code: pytest.ExitCode) -> None:
    with pytest_with_two_workers(tmp_path, ABSENT, CI=ci) as run:
        output, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == code, output
    _, _, summary = output.partition("! NOT TESTED !")
    lines = [line for line in summary.splitlines() if line.startswith("NOT TESTED: Absent: nobody makes it")]
    assert len(lines) == 1, output


def told(directory: Path) -> list[list[str]]:
    return [file.read_text().split() for file in directory.glob("*.told")]


def await_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
