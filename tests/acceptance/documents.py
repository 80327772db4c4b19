"""Markdown pages as programs: their Python blocks, and their `$ postroom` lines on SQLite, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)")
_SECONDS = 120


def program_of(page: Path) -> str:
    """The page as one Python program, each line where it is on the page, so that a traceback points there."""
    language: str | None = None
    lines: list[str] = []
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = _FENCE.match(line)
        if fence:
            language = fence[1] if language is None else None
            lines.append("")
        elif language == "python":
            lines.append(line)
        elif language == "console" and line.startswith("$ postroom ") and "sqlite:///" in line:
            lines.append(_called(shlex.split(line.removeprefix("$ "), comments=True)))
        else:
            lines.append("")
    return "\n".join(lines)


def run(page: Path, directory: Path) -> None:
    """Run the page in the directory, with warnings as errors, and its tests; fails with what it printed."""
    program = directory / f"{page.stem}.py"
    source = program_of(page)
    program.write_text(source, encoding="utf-8")
    # Where there are tests, pytest runs the program as it collects them.
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"] if "\ndef test_" in source else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")}
    ended = subprocess.run(
        [sys.executable, "-W", "error", *pytest, program],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert ended.returncode == 0, f"{page.name}, lines as on the page:\n{ended.stdout}{ended.stderr}"


def _called(words: list[str]) -> str:
    command = [sys.executable, "-m", *words]
    return f"import subprocess as _s; _s.run({command!r}, check=True, stdout=_s.DEVNULL)"
