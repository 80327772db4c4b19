"""``manage.py postroom relay``, ``consume``, ``status`` and all the others."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from postroom.django.command_line import run


class Command(BaseCommand):
    """Passes everything on to the command line of Postroom."""

    help = "Relay and consume messages, look at them and act on them: see `postroom --help`."
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run it for a shell, which gets the exit code."""
        try:
            code = run(argv[2:], argv[0])
        finally:
            connections.close_all()
        sys.exit(code)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """What `manage.py help postroom` prints."""
        del subcommand
        run(["--help"], prog_name)

    def add_arguments(self, parser: Any) -> None:
        """Take all arguments as they are."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it for `call_command`. Raises `CommandError` if it fails."""
        with redirect_stdout(options.get("stdout") or sys.stdout), redirect_stderr(options.get("stderr") or sys.stderr):
            code = run(options["arguments"], sys.argv[0])
        if code:
            raise CommandError(f"postroom {' '.join(options['arguments'][:1])} has failed", returncode=code)
