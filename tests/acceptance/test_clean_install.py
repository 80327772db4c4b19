"""`pip install .` in an empty environment is enough for the demo, and for every command on SQLite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.services.certificates import environment_to_download

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
DATABASE = "sqlite:///shop.db"
USED = """
import sqlite3
from contextlib import closing
import postroom, postroom.testing, postroom.web

for package in (postroom, postroom.testing, postroom.web):
    for name in package.__all__:
        try:
            getattr(package, name)
        except ImportError as error:
            assert name in ("Access", "Dashboard") and "pip install 'postroom[dashboard]'" in str(error)
with closing(sqlite3.connect("shop.db")) as connection, connection:
    postroom.Outbox().add(connection, "orders.created", {"order_id": 7}, key=7)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds Postroom and what it depends on, in the versions of the lock."""
    folder = tmp_path_factory.mktemp("clean")
    uv = str(Path(sys.executable).parent / "uv")
    _run([uv, "build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT])
    [wheel] = folder.glob("postroom-*.whl")
    _run([uv, "venv", "--python", sys.executable, folder / "venv"])
    programs = folder / "venv" / "bin"
    _run(
        [
            uv,
            "pip",
            "install",
            "--python",
            programs / "python",
            "--constraint",
            ROOT / "requirements.lock",
            "--compile-bytecode",
            wheel,
        ]
    )
    return programs


def test_a_fresh_install_needs_no_further_package_for_commands_on_sqlite(programs: Path, tmp_path: Path) -> None:
    postroom = programs / "postroom"
    _run([postroom, "init", "--database", DATABASE], tmp_path)
    _run([programs / "python", "-W", "error", "-c", USED], tmp_path)
    assert json.loads(_run([postroom, "status", "--database", DATABASE, "--json"], tmp_path))["pending"] == 1
    sent = _run([postroom, "relay", "--broker", "stdout:", "--until-empty", "--database", DATABASE], tmp_path)
    assert json.loads(sent)["topic"] == "orders.created"
    for command in (["messages", "list"], ["dead", "list"], ["cleanup"]):
        _run([postroom, *command, "--database", DATABASE], tmp_path)
    _run([postroom, "bench", "--messages", "100", "--rounds", "1"], tmp_path)


def test_a_fresh_install_has_the_dashboards_files_and_says_what_it_needs(programs: Path, tmp_path: Path) -> None:
    found = next((programs.parent / "lib").glob("python*")) / "site-packages" / "postroom" / "web" / "dashboard"
    there = Path(ROOT, "src", "postroom", "web", "dashboard")
    for folder in ("html", "static", "static/vendor"):
        assert sorted(path.name for path in (found / folder).iterdir()) == sorted(
            path.name for path in (there / folder).iterdir()
        )
    ended = subprocess.run(
        [programs / "postroom", "dashboard", "--database", DATABASE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "pip install 'postroom[dashboard]'" in ended.stderr) == (1, True)


def test_a_fresh_install_can_show_the_demo(programs: Path, tmp_path: Path) -> None:
    shown = json.loads(_run([programs / "postroom", "demo", "--messages", "20", "--json"], tmp_path))
    assert (shown["committed"], shown["effects"], shown["lost"]) == (20, 20, 0)


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    environment = {
        name: value
        for name, value in environment_to_download().items()
        if not name.startswith(("COVERAGE_", "POSTROOM_", "PYTHONPATH", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, f"{' '.join(map(str, command))}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout
