"""``postroom consume``: receive messages, and have each handled once."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json
from postroom.errors import InvalidSetting
from postroom.settings import ENVIRONMENT, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumer import Consumer


def consume(
    app: Annotated[
        str, typer.Option(metavar="MODULE:OBJECT", help="The consumer, or a list of them, in one of your modules.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Handle what the broker has at hand and what is due, then end.")
    ] = False,
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="For consumers that are given none: amqp:, kafka:, nats:, redis:.")
    ] = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Receive messages and handle them, until SIGTERM or Ctrl-C. A second signal ends it at once.

    The settings given here are for consumers that do not have them from their own code.
    """
    from postroom.logs import structured

    given = {"broker": broker, "database": database, "schema": schema, "table_prefix": table_prefix}
    Settings.load(**given)
    os.environ |= {ENVIRONMENT[name]: value for name, value in given.items() if value is not None}
    consumers = _load(app)
    hook = structured()
    for one in consumers:
        one.add_hook(hook)
    with asyncio.Runner() as runner:
        runner.run(_run(consumers, once=once))
    if as_json:
        print_json({one.name: asdict(one.report) for one in consumers})


def _load(address: str) -> Sequence[Consumer]:
    """The consumers that ``module:object`` names. Raises `InvalidSetting`."""
    from postroom.consumer import Consumer

    module, _, path = address.partition(":")
    if not module or not path:
        raise InvalidSetting(f"--app {address} does not name an object: write module:object")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise InvalidSetting(f"--app {address} cannot be loaded: {type(error).__name__}: {error}") from error
    consumers = list(found) if isinstance(found, list | tuple) else [found]
    if not consumers or not all(isinstance(one, Consumer) for one in consumers):
        raise InvalidSetting(f"--app {address} is a {type(found).__name__}: give a Consumer, or a list of them")
    for one in consumers:
        if not one.has_broker:
            raise InvalidSetting(
                f"the consumer {one.name!r} has no broker: give it one, or set POSTROOM_BROKER; http: is for one that "
                "receives webhooks elsewhere, and retries here what is parked"
            )
    return consumers


async def _run(consumers: Sequence[Consumer], *, once: bool) -> None:
    from postroom.relay.reasons import one_reason

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, consumers, number)
    with one_reason():
        async with asyncio.TaskGroup() as group:
            for one in consumers:
                group.create_task(one.run_once() if once else one.run())


def _stop(consumers: Sequence[Consumer], number: signal.Signals) -> None:
    if any(one.stopping for one in consumers):
        os._exit(128 + number)  # the second signal: what is in flight comes again
    for one in consumers:
        one.stop()
