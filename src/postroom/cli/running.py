"""Run a command, and turn what it raises into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from postroom.cli import plain_arguments
from postroom.cli.commands import function_of
from postroom.cli.output import echo
from postroom.errors import InvalidSetting, PostroomError, UnsupportedDatabase

FAILED = 1
WRONG_USAGE = 2
CUT_OFF = 141
"""What a shell reports for a program whose reader is gone: 128 + SIGPIPE."""

SERVICES = frozenset({"relay", "consume"})
"""Commands that run for long, and should start soon: without Typer where their arguments are plain."""

_DATABASE_LIBRARIES = frozenset(
    {"aiomysql", "aiosqlite", "asyncmy", "asyncpg", "psycopg", "psycopg2", "pymysql", "sqlalchemy", "sqlite3"}
)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    _write_whatever_the_encoding()
    try:
        code = _outcome(given)
        echo(end="")  # flush here, where a failure can still be reported
    except BrokenPipeError:  # as `head` does to what it reads from
        _drop_output()
        return CUT_OFF
    except OSError as error:
        _drop_output()
        return _complain(str(error))
    return code


def _outcome(arguments: list[str]) -> int:
    try:
        _call(arguments)
    except (InvalidSetting, UnsupportedDatabase) as error:
        return _complain(str(error), WRONG_USAGE)
    except PostroomError as error:
        return _complain(str(error))
    except Exception as error:
        code = _code_of(error, arguments)
        if code is None:
            raise
        return code
    return 0


def _call(arguments: list[str]) -> None:
    if arguments and arguments[0] in SERVICES:
        function = function_of(arguments[0])
        given = plain_arguments.read(function, arguments[1:])
        if given is not None:
            function(**given)
            return
    import typer.main

    from postroom.cli.app import app

    command = typer.main.get_command(app(*arguments[:1]))
    with command.make_context("postroom", list(arguments)) as context:
        command.invoke(context)


def _code_of(error: Exception, arguments: list[str]) -> int | None:
    """The exit code after an error of Typer's or the database's, which it prints; None for any other."""
    import typer

    # Found by inheritance: it is click's class in older versions of Typer, and Typer's own in newer ones.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    if isinstance(error, typer.Exit):
        return int(error.exit_code)
    if isinstance(error, typer.Abort):  # Ctrl-C or Ctrl-D at a question
        raise KeyboardInterrupt from None
    if isinstance(error, usage_error):
        return _complain(_usage(error, arguments), WRONG_USAGE)
    if type(error).__module__.partition(".")[0] not in _DATABASE_LIBRARIES:
        return None
    from postroom.store.sql.db_errors import reason

    return _complain(f"the database refused: {reason(error)}")


def _complain(problem: str, code: int = FAILED) -> int:
    with suppress(OSError):  # standard error is gone too
        echo(f"postroom: {' '.join(problem.split())}", err=True)
    return code


def _usage(error: Exception, arguments: list[str]) -> str:
    """What is wrong with the arguments, and where to read about them. URLs are masked: they may hold a password."""
    problem = str(error.format_message()).replace("Value error, ", "")  # type: ignore[attr-defined]  # every usage error has it
    for argument in arguments:
        url = argument.partition("=")[2] if argument.startswith("-") else argument
        if "://" in url:
            problem = problem.replace(url, f"{url.partition('://')[0]}://***")
    context = getattr(error, "ctx", None)  # none without Typer, which is for commands of one word
    command = context.command_path if context else f"postroom {arguments[0]}" if arguments else "postroom"
    return f"{problem.rstrip('.')} (see `{command} --help`)"


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
