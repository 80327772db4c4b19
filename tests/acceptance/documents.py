"""Markdown pages as programs: their Python blocks, and their `$ postroom` lines on SQLite, in order.

A page may use a PostgreSQL and a MariaDB database, whose URLs it finds in the variables `SHOP` and `BANK`.
"""

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
_VARIABLES = {"SHOP": "postgresql", "BANK": "mariadb"}
_VARIABLE = re.compile(r'(?:environ\["|\$)(SHOP|BANK)\b')


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
        elif language == "console" and line.startswith("$ postroom ") and _runs(line):
            lines.append(_called(shlex.split(line.removeprefix("$ "), comments=True)))
        else:
            lines.append("")
    return "\n".join(lines)


def databases_of(page: Path) -> dict[str, str]:
    """The variables that the page takes a database from, and the kind of each."""
    return {name: _VARIABLES[name] for name in _VARIABLE.findall(page.read_text(encoding="utf-8"))}


def run(page: Path, directory: Path, databases: dict[str, str]) -> None:
    """Run the page in the directory, with warnings as errors, and its tests; fails with what it printed."""
    program = directory / f"page_{page.stem}.py"  # a page on Django is not to be taken for Django
    source = program_of(page)
    program.write_text(source, encoding="utf-8")
    # Where there are tests, pytest runs the program as it collects them.
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"] if "\ndef test_" in source else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")} | databases
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


def _runs(line: str) -> bool:
    return "sqlite:///" in line or _VARIABLE.search(line) is not None


def _called(words: list[str]) -> str:
    command = [sys.executable, "-m", *words]
    return (
        f"import os as _o, subprocess as _s; "
        f"_s.run([_o.path.expandvars(word) for word in {command!r}], check=True, stdout=_s.DEVNULL)"
    )
