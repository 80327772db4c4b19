"""Plain arguments are read as Typer reads them; all others are left to it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer.main

from postroom.cli.app import app
from postroom.cli.commands import function_of
from postroom.cli.plain_arguments import read

URL = "postgresql://shop:p%40ss@db/shop?application_name=a=b"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("relay", ""),
        ("relay", f"--once --broker stdout: --database {URL} --json"),
        ("relay", f"--database={URL} --schema=post --worker=one --until-empty --processes 4"),
        ("relay", "--broker-for a.*=nats://one --broker-for=b=nats://two --app shop:saga"),
        ("relay", "--dedup --no-cdc --tracebacks --order skip --log-format json --log-level=error"),
        ("relay", "--concurrency 8 --batch 500 --poll-interval-sec 0.25 --lock-lease-sec 60 --backoff-sec 1,2,3"),
        ("relay", "--http-port 9100 --http-host 0.0.0.0 --cleanup-every-sec 600 --cdc-max-wal-bytes 100000000"),
        ("consume", "--app shop:consumer"),
        ("consume", "--app shop:consumer --once --broker nats://host --no-tracebacks"),
    ],
)
def test_plain_arguments_are_read_as_typer_reads_them(command: str, line: str) -> None:
    given = read(function_of(command), line.split())
    assert given is not None
    assert {**defaults(command), **given} == read_by_typer(command, line.split())


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "-h", "extra", "--", "--onc", "--once=true", "--once --once", "--tracebacks --no-tracebacks"),
        *("--broker", "--broker=", "--broker --once", "--broker a: --broker b:"),
        *("--batch many", "--batch -1", "--batch 1_0", "--batch 1.0", "--batch ٣", "--concurrency=9999999999999999"),
        *("--processes 0", "--processes 257", "--poll-interval-sec 1e3", "--poll-interval-sec nan"),
        *("--order Hold", "--log-level trace"),
    ],
)
def test_what_is_not_plain_is_left_to_typer(line: str) -> None:
    assert read(function_of("relay"), line.split()) is None


def test_a_required_option_that_is_missing_is_left_to_typer() -> None:
    assert read(function_of("consume"), ["--once"]) is None
    assert read(function_of("status"), ["--help"]) is None


def defaults(command: str) -> dict[str, Any]:
    parameters = inspect.signature(function_of(command)).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def read_by_typer(command: str, arguments: list[str]) -> dict[str, Any]:
    group: Any = typer.main.get_command(app(command))
    one = group.commands[command]
    with one.make_context(command, list(arguments)) as context:
        values: dict[str, Any] = context.params
    return {name: (list(value) or None) if isinstance(value, list | tuple) else value for name, value in values.items()}
