"""Django projects of the tests, as processes of their own: Django is configured once in a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from scripts.other_pythons import find_interpreter
from tests.acceptance.documents import ROOT
from tests.contract.connection_kinds import DJANGO_ENGINES
from tests.services.built import build

if TYPE_CHECKING:
    from collections.abc import Sequence

SHOP = ROOT / "examples" / "django_shop"
SECONDS = 120
LOCK = ROOT / "requirements.lock"
PYTHONS = ("3.13", "3.12", "3.14")
"""On which the newest Django runs."""


class Project:
    """A directory with settings, on a database, in an environment."""

    def __init__(self, url: str, broker: str = "", python: Path | None = None, directory: Path = SHOP) -> None:
        self._python = python or Path(sys.executable)
        self.directory = directory
        self.environment = _environment(url) | ({"SHOP_BROKER": broker} if broker else {})

    def manage(self, *arguments: str, code: int = 0) -> str:
        """Run `manage.py`, and return what it prints; its exit code must be this one."""
        return self.run("manage.py", *arguments, code=code)

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Run a program, and return what it prints."""
        ended = subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def command(self, *arguments: str | Path) -> list[str | Path]:
        """How a program is started: a warning is an error."""
        return [self._python, "-W", "error", *arguments]


def _environment(url: str) -> dict[str, str]:
    parsed = make_url(url)
    others = {name: value for name, value in os.environ.items() if not name.startswith(("POSTROOM_", "OUTBOX_"))}
    return others | {
        "SHOP_ENGINE": DJANGO_ENGINES[parsed.get_backend_name()],
        "SHOP_DATABASE": parsed.database or "",
        "SHOP_DATABASE_HOST": parsed.host or "",
        "SHOP_DATABASE_PORT": str(parsed.port or ""),
        "SHOP_DATABASE_USER": parsed.username or "",
        "SHOP_DATABASE_PASSWORD": parsed.password or "",
        "POSTROOM_DATABASE": "sqlite:////nowhere/to/be/found.db",  # which Django's settings come before
    }


def with_django(version: str) -> Path | None:
    """The Python of an environment with this Django; None if this machine has no Python for it. Raises `Unavailable`.

    All else is in the versions of the lock.
    """
    newest = version == "newest"
    interpreter = next(filter(None, map(find_interpreter, PYTHONS)), None) if newest else Path(sys.executable)
    if interpreter is None:
        return None
    directory = ROOT / f".venv-django-{version}"
    uv = Path(sys.executable).with_name("uv")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        pins: Sequence[str] = re.findall(r"^([\w.-]+==[^\\\n]*)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
        constraints.write("\n".join(pin for pin in pins if newest or not pin.startswith("django==")))
        constraints.flush()
        wanted = ["django" if newest else f"django~={version}.0", "-e", ".[postgresql,nats]"]
        commands: list[list[str | Path]] = [
            [uv, "venv", "--quiet", "--python", interpreter, directory],
            [uv, "pip", "install", "--quiet", "--constraint", constraints.name, *wanted],
        ]
        build(directory, LOCK, commands, {"VIRTUAL_ENV": str(directory)})
    return directory / "bin" / "python"
