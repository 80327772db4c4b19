"""The demo: first contact for someone who has never heard of an outbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 30


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs put their temporary files; and a working directory with settings that must not reach the demo."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setenv("POSTROOM_DATABASE", f"sqlite:///{tmp_path / 'mine.db'}")
    monkeypatch.setenv("POSTROOM_SCHEMA", "mine")
    (tmp_path / "postroom.toml").write_text('table_prefix = "mine_"\n')
    monkeypatch.chdir(tmp_path)
    return directory


def demo(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "postroom", "demo", *arguments],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_the_demo_tells_its_story_and_leaves_nothing_behind(temporary: Path) -> None:
    told = demo()
    for word in ("outbox", "transaction", "Rolled back", "twice", "orders.created", "pending", "relay"):
        assert word in told
    assert "Nothing has been sent yet" in told
    assert told.endswith("5 orders committed, 0 without a message, 0 with two.\n")
    assert told.isascii()
    assert max(map(len, told.splitlines())) < 120
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in temporary.parent.iterdir()) == ["postroom.toml", "temporary"]


@pytest.mark.parametrize("number", [1, 1000])
def test_O_1_O_3_the_demo_counts_what_it_did(number: int, temporary: Path) -> None:
    figures = json.loads(demo("--json", "--messages", str(number)))
    assert figures == {
        "committed": number,
        "delivered": 0,
        "effects": 0,
        "duplicates": 0,
        "dead": 0,
        "lost": 0,
        "pending": number,
    }
    assert list(temporary.iterdir()) == []
