"""The demo: first contact for someone who has never heard of an outbox."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from postroom.cli.demo.relay_processes import DemoFailed, RelayProcesses

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 120
"""A bound for a machine that does much else; it takes about ten."""
DEMO = (sys.executable, "-m", "postroom", "demo")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs put their temporary files; and a working directory with settings that must not reach the demo."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setenv("POSTROOM_DATABASE", f"sqlite:///{tmp_path / 'mine.db'}")
    monkeypatch.setenv("POSTROOM_SCHEMA", "mine")
    monkeypatch.setenv("OUTBOX_LANE_LEASE_SEC", "3600")
    (tmp_path / "postroom.toml").write_text('table_prefix = "mine_"\n')
    monkeypatch.chdir(tmp_path)
    return directory


def demo(*arguments: str) -> str:
    ended = subprocess.run(
        [*DEMO, *arguments],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def relays_in(directory: Path) -> list[int]:
    """The demo's relays that run below the directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        command = process.info["cmdline"] or []
        if "postroom.cli.demo.relay" in command and any(str(directory) in part for part in command):
            found.append(process.info["pid"])
    return found


def test_the_demo_tells_its_story_and_leaves_nothing_behind(temporary: Path) -> None:
    told = demo()
    for word in (
        "outbox",
        "inbox",
        "Rolled back",
        "twice",
        "broker is down",
        "SIGKILL",
        "dead letter",
        "relay",
        "saga",
    ):
        assert word in told
    assert "order 7: stock reserved, card declined, stock given back." in told
    assert "order 8: stock reserved, card charged, parcel sent." in told
    assert "4 pieces in stock: one was sold, and none is lost." in told
    conclusion = re.compile(
        r"120 committed, 120 delivered, effects 120, 0 lost, 0 billed twice, duplicates skipped [1-9]\d*, dead 1\.\n"
    )
    assert conclusion.fullmatch(told.splitlines(keepends=True)[-1])
    assert told.isascii()
    assert max(map(len, told.splitlines())) < 120
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in temporary.parent.iterdir()) == ["postroom.toml", "temporary"]
    assert relays_in(temporary) == []


@pytest.mark.parametrize("number", [1, 500])
def test_L_8_I_1_nothing_is_lost_and_nothing_billed_twice(number: int, temporary: Path) -> None:
    figures = json.loads(demo("--json", "--messages", str(number)))
    assert figures.pop("duplicates") >= 1
    assert figures == {
        "committed": number,
        "delivered": number,
        "effects": number,
        "dead": 1,
        "lost": 0,
        "billed_twice": 0,
        "pending": 0,
        "sagas_completed": 1,
        "sagas_undone": 1,
        "stock_missing": 0,
    }
    assert list(temporary.iterdir()) == []


def test_on_a_terminal_the_figures_move(temporary: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        [*DEMO, "--messages", "30"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # Linux's way to say that the other side has closed
            pass
        os.close(ours)
        assert process.wait(SECONDS) == 0
    told = seen.decode()
    for shown in ("waiting in the outbox", "relay-1, relay-2", "broker", "down", "30 committed, 30 delivered"):
        assert shown in told
    assert list(temporary.iterdir()) == []


def started() -> subprocess.Popen[str]:
    """A demo whose relays are at work."""
    process = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("2."):
            return process
    pytest.fail(f"the demo ended with {process.wait()}: {process.stderr.read() if process.stderr else ''}")


def test_ctrl_c_ends_the_demo_and_its_relays(temporary: Path) -> None:
    with started() as process:
        assert len(relays_in(temporary)) == 2
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=SECONDS)
        assert (process.returncode, complaint) == (130, "")
    assert relays_in(temporary) == []
    assert list(temporary.iterdir()) == []


def test_the_relays_of_a_demo_that_is_killed_end_too(temporary: Path) -> None:
    with started() as process:
        process.kill()
        process.communicate(timeout=SECONDS)
    deadline = time.monotonic() + SECONDS
    while relays_in(temporary):
        assert time.monotonic() < deadline, "relays go on without the demo"
        time.sleep(0.05)


def test_a_relay_that_ends_by_itself_is_reported_with_what_it_said(tmp_path: Path) -> None:
    with RelayProcesses(tmp_path) as relays:
        relays.start("relay-1")
        process = relays._relays["relay-1"]
        assert process.wait(SECONDS) == 1
        with pytest.raises(DemoFailed, match=r"^relay-1 ended with 1: postroom\.errors\.SchemaMissing: "):
            relays.check()
