"""Run a command, and turn what it raises into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import typer
import typer.main

from postroom.cli.app import app
from postroom.errors import InvalidSetting, PostroomError, UnsupportedDatabase

FAILED = 1
WRONG_USAGE = 2
CUT_OFF = 141
"""What a shell reports for a program whose reader is gone: 128 + SIGPIPE."""

# Found by inheritance: it is click's class in older versions of Typer, and Typer's own in newer ones.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_DATABASE_LIBRARIES = frozenset(
    {"aiomysql", "aiosqlite", "asyncmy", "asyncpg", "psycopg", "psycopg2", "pymysql", "sqlalchemy", "sqlite3"}
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _write_whatever_the_encoding()
    try:
        code = _outcome(given)
        typer.echo(nl=False)  # flush here, where a failure can still be reported
    except BrokenPipeError:  # as `head` does to what it reads from
        _drop_output()
        return CUT_OFF
    except OSError as error:
        _drop_output()
        return _complain(str(error))
    return code


def _outcome(arguments: list[str]) -> int:
    command = typer.main.get_command(app(*arguments[:1]))
    try:
        with command.make_context("postroom", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:  # Ctrl-C or Ctrl-D at a question
        raise KeyboardInterrupt from None
    except UsageError as error:
        return _complain(_usage(error, arguments), WRONG_USAGE)
    except (InvalidSetting, UnsupportedDatabase) as error:
        return _complain(str(error), WRONG_USAGE)
    except PostroomError as error:
        return _complain(str(error))
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _DATABASE_LIBRARIES:
            raise
        from postroom.store.sql.db_errors import reason

        return _complain(f"the database refused: {reason(error)}")
    return 0


def _complain(problem: str, code: int = FAILED) -> int:
    with suppress(OSError):  # standard error is gone too
        typer.echo(f"postroom: {' '.join(problem.split())}", err=True)
    return code


def _usage(error: Exception, arguments: list[str]) -> str:
    """What is wrong with the arguments, and where to read about them. URLs are masked: they may hold a password."""
    problem = str(error.format_message()).replace("Value error, ", "")  # type: ignore[attr-defined]  # every usage error has it
    for argument in arguments:
        url = argument.partition("=")[2] if argument.startswith("-") else argument
        if "://" in url:
            problem = problem.replace(url, f"{url.partition('://')[0]}://***")
    context = getattr(error, "ctx", None)
    return f"{problem.rstrip('.')} (see `{context.command_path if context else 'postroom'} --help`)"


def _write_whatever_the_encoding() -> None:
    """Escape characters that the terminal cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Python flushes its buffer when it ends, and would fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
