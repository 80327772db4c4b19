"""``postroom consume``: receive messages, and have each handled once."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from postroom.cli import collect_as_usual, late_calls
from postroom.cli.option import option
from postroom.cli.options import (
    Database,
    HttpHost,
    HttpPort,
    Json,
    LogFormat,
    LogLevel,
    Schema,
    TablePrefix,
    Tracebacks,
)
from postroom.cli.output import print_json
from postroom.cli.signals import stop_on_signals
from postroom.errors import InvalidSetting
from postroom.runtime.functions import load_object
from postroom.settings import COMMAND_LINE, Settings, provided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.cli.telemetry import Telemetry
    from postroom.consumer import Consumer


def consume(  # noqa: PLR0913, PLR0917 - each is an option
    app: Annotated[
        str,
        option(metavar="MODULE:OBJECT", help="Your consumer, or a list of them, as in shop.billing:consumer."),
    ],
    once: Annotated[
        bool, option("--once", help="Handle what is available and what is due for a retry, then exit.")
    ] = False,
    broker: Annotated[
        str | None,
        option(
            metavar="URL",
            help="Broker of consumers whose code names none: amqp://host, kafka://host, nats://host, redis://host. "
            "Default: POSTROOM_BROKER.",
        ),
    ] = None,
    http_port: HttpPort = None,
    http_host: HttpHost = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    tracebacks: Tracebacks = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Receive and handle messages until SIGTERM or Ctrl-C. A second signal stops it at once.

    Settings given here apply to consumers whose code does not set them.
    """
    from postroom.cli.telemetry import telemetry

    given = {"broker": broker, "database": database, "schema": schema, "table_prefix": table_prefix}
    told_how = {"log_level": log_level, "log_format": log_format, "tracebacks": tracebacks}
    settings = Settings.load(**given, **told_how, http_port=http_port, http_host=http_host)
    with provided(COMMAND_LINE, given):
        consumers = _load(app)
        told = telemetry(settings)
        for one in consumers:
            one.add_hook(told.hook)
        collect_as_usual()
        late = late_calls.run(_run(consumers, told, once=once))
    if as_json:
        print_json({one.name: asdict(one.report) for one in consumers})
    late_calls.leave(late)


def _load(address: str) -> Sequence[Consumer]:
    """The consumers at ``module:object``. Raises `InvalidSetting`."""
    from postroom.consumer import Consumer

    found = load_object(address, f"--app {address}", "an object: write module:object")
    consumers = list(found) if isinstance(found, list | tuple) else [found]
    if not consumers or not all(isinstance(one, Consumer) for one in consumers):
        raise InvalidSetting(f"--app {address} is a {type(found).__name__}: give a Consumer, or a list of them")
    for one in consumers:
        if not one.has_broker:
            raise InvalidSetting(
                f"the consumer {one.name!r} has no broker: pass one, use --broker or set POSTROOM_BROKER. For one "
                "behind a webhook Receiver pass http:, and this command retries what it has parked"
            )
    return consumers


async def _run(consumers: Sequence[Consumer], told: Telemetry, *, once: bool) -> None:
    from postroom.runtime.error_groups import first_error_only

    stop_on_signals(consumers)
    with first_error_only():
        async with told.serving, asyncio.TaskGroup() as group:
            for one in consumers:
                group.create_task(one.run_once() if once else one.run())
