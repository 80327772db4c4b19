"""``manage.py postroom …``: the commands of ``postroom``, with Django's settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from postroom.cli import main, processes

if TYPE_CHECKING:
    from collections.abc import Sequence

_WITH_VALUE = ("--settings", "--pythonpath")
_WITHOUT = ("--traceback", "--no-color", "--force-color", "--skip-checks")
HANDLERS = "postroom.django.consumers:discovered"


def run(arguments: Sequence[str], program: str) -> int:
    """Run a command; returns its exit code. ``program`` is what this process was started with: `manage.py`."""
    own, django = split(arguments)
    processes.PROGRAM[:] = [sys.executable, *_started_by(program), "postroom", *django]
    return main(_with_handlers(own))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments for Postroom, and those that every command of Django's takes."""
    own: list[str] = []
    django: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one in _WITH_VALUE:
            django += [one, next(rest, "")]
        elif one in _WITHOUT or one.startswith(tuple(f"{name}=" for name in _WITH_VALUE)):
            django.append(one)
        else:
            own.append(one)
    return own, django


def _with_handlers(arguments: list[str]) -> list[str]:
    """`consume` without a consumer runs those of every application."""
    asks = any(one in {"-h", "--help"} or one.partition("=")[0] == "--app" for one in arguments)
    return [*arguments, "--app", HANDLERS] if arguments[:1] == ["consume"] and not asks else arguments


def _started_by(program: str) -> list[str]:
    """How to start it again: by its path, or by its module, as in ``python -m django``."""
    return ["-m", "django"] if program.endswith(("__main__.py", "django-admin")) else [program]
