"""``postroom relay``: deliver what is in the outbox."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

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
from postroom.cli.output import print_json, warn
from postroom.compose import check_default
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.settings import MOST_PORT, Settings

if TYPE_CHECKING:
    from postroom.cli.telemetry import Telemetry
    from postroom.relay import Relay, Report

SUPERVISED = "POSTROOM_SUPERVISED"
"""Set for the processes of `--processes`: they stop when their standard input ends, because then nobody minds them."""


def relay(  # noqa: PLR0913, PLR0917 - every setting of a relay is an option
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where to deliver: amqp://host, https://host/path, kafka://host, nats://host, redis://host, "
            "python:module:function, stdout: (JSON lines). Default: POSTROOM_BROKER.",
        ),
    ] = None,
    broker_for: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=URL",
            help="Deliver topics that match to this broker, as in 'payments.*=kafka://host'; may be repeated. "
            "Default: POSTROOM_BROKERS.",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Deliver what can be sent now, then exit.")] = False,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="Exit when no relay has anything left to send now."),
    ] = False,
    processes: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="Run and supervise this many relay processes.")
    ] = 1,
    worker: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this relay. Default: host, process id and a number.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(metavar="N", help="Publish calls in flight (4).")] = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Messages claimed at once (1000).")] = None,
    poll_interval_sec: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The longest pause of an idle relay (0.5).")
    ] = None,
    lock_lease_sec: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The lease on a message without a key (120).")
    ] = None,
    lane_lease_sec: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="The lease on a lane, for messages with a key (15).")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Failed sends after which a message is dead (6).")
    ] = None,
    backoff_sec: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Seconds until the next attempt; the last repeats (5,10,20,40,80,160)."),
    ] = None,
    broker_timeout_ms: Annotated[
        float | None, typer.Option(metavar="MS", help="A send that takes longer has failed (2500).")
    ] = None,
    max_in_flight_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Payload bytes held in memory at a time, roughly (16 MB).")
    ] = None,
    order: Annotated[
        Literal["hold", "skip"] | None,
        typer.Option(help="What a dead message does to those behind it on its key (hold)."),
    ] = None,
    dedup: Annotated[
        bool | None,
        typer.Option("--dedup/--no-dedup", help="Skip a message whose content was sent to the same topic before."),
    ] = None,
    cleanup_every_sec: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Clean up this often, as `postroom cleanup` does (never)."),
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
    """Deliver messages from the outbox until SIGTERM or Ctrl-C. A second signal stops it at once."""
    if once and until_empty:
        raise typer.BadParameter("--once and --until-empty are two ways to end: give one of them")
    given = {
        "concurrency": concurrency,
        "batch": batch,
        "poll_interval_sec": poll_interval_sec,
        "lock_lease_sec": lock_lease_sec,
        "lane_lease_sec": lane_lease_sec,
        "max_attempts": max_attempts,
        "backoff_sec": backoff_sec,
        "broker_timeout_ms": broker_timeout_ms,
        "max_in_flight_bytes": max_in_flight_bytes,
        "order": order,
        "dedup": dedup,
        "cleanup_every_sec": cleanup_every_sec,
        "http_port": http_port,
        "http_host": http_host,
        "log_level": log_level,
        "log_format": log_format,
        "tracebacks": tracebacks,
        "schema": schema,
        "table_prefix": table_prefix,
        "database": database,
        "broker": broker,
        "brokers": _brokers(broker_for),
    }
    settings = Settings.load(**given)
    check_default(None, settings)
    if any(url.partition(":")[0] == "memory" for url in (settings.broker or "", *settings.brokers.values())):
        raise InvalidSetting("memory: is for tests: the messages would count as sent, and be lost when the relay ends")
    if not settings.enabled:
        warn("the relay is switched off (OUTBOX_ENABLED): messages are recorded, and wait")
        if as_json:
            from postroom.relay import Report

            print_json(asdict(Report()))
        return
    if processes > 1:
        from postroom.cli.processes import supervise

        flags = [flag for flag, wanted in {"--once": once, "--until-empty": until_empty}.items() if wanted]
        ports = _ports(settings, processes)
        raise typer.Exit(supervise(processes, worker, [*flags, *_flags(given | {"http_port": None})], ports))
    reasons: dict[str, str] = {}
    how_long = "once" if once else "until empty" if until_empty else "always"
    report = _deliver(settings, given, worker, how_long, reasons)
    if as_json:
        print_json(asdict(report))
    if once and report.broker_down:
        which = f" ({', '.join(report.queues_down)})" if settings.brokers else ""
        why = "; ".join(dict.fromkeys(reasons[queue].rstrip(".") for queue in report.queues_down))
        raise BrokerUnavailable(f"the broker cannot be reached{which}: {why}; what is left waits for the next run")
    if once and report.targets_down:
        why = "; ".join(f"{topic}: {reason}" for topic, reason in sorted(report.targets_down.items()))
        raise BrokerUnavailable(f"some topics take no messages: {why}; `postroom status` tells how many wait for them")


def _ports(settings: Settings, processes: int) -> range | None:
    """A port for each process, in a row."""
    if settings.http_port is None:
        return None
    ports = range(settings.http_port, settings.http_port + processes)
    if ports[-1] > MOST_PORT:
        raise InvalidSetting(
            f"http_port = {settings.http_port}: each of {processes} processes has a port of its own, from that one on, "
            f"and there is none above {MOST_PORT}: give a lower one"
        )
    return ports


def _brokers(given: list[str] | None) -> dict[str, str] | None:
    """The patterns and URLs of `--broker-for`."""
    if not given:
        return None
    brokers: dict[str, str] = {}
    for one in given:
        pattern, _, url = one.partition("=")
        if not pattern or not url:
            raise typer.BadParameter("--broker-for takes PATTERN=URL, as in 'payments.*=kafka://host'")
        brokers[pattern] = url
    return brokers


def _flags(given: dict[str, Any]) -> list[str]:
    """The options as they were given, for another process."""
    flags: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        match value:
            case None:
                pass
            case True:
                flags.append(flag)
            case False:
                flags.append(flag.replace("--", "--no-", 1))
            case dict():
                for pattern, url in value.items():
                    flags += ["--broker-for", f"{pattern}={url}"]
            case _:
                flags += [flag, str(value)]
    return flags


def _deliver(
    settings: Settings, given: dict[str, Any], worker: str | None, how_long: str, reasons: dict[str, str]
) -> Report:
    """Run a relay; `reasons` gets, for each queue, why its broker could not be reached."""
    from postroom.cli.telemetry import telemetry
    from postroom.relay import Relay
    from postroom.telemetry.events import DATABASE, Event, Reachability, all_of

    def note(event: Event) -> None:
        if isinstance(event, Reachability) and event.what != DATABASE and not event.reachable:
            reasons[event.queue] = event.reason

    broker = given.pop("broker")
    database = given.pop("database")
    told = telemetry(settings)
    relay = Relay(database, broker, worker=worker, hook=all_of(note, told.hook), **given)
    gc.collect()
    gc.freeze()  # what is loaded by now stays: the collector need not look at it again and again
    with asyncio.Runner() as runner:
        runner.run(_run(relay, told, how_long))
    return relay.report


async def _run(relay: Relay, told: Telemetry, how_long: str) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stopper(relay, number))
    if os.environ.get(SUPERVISED):
        loop.add_reader(sys.stdin.fileno(), relay.stop)
    async with told.serving:
        match how_long:
            case "once":
                await relay.run_once()
            case "until empty":
                await relay.run_until_empty()
            case _:
                await relay.run()


def _stopper(relay: Relay, number: signal.Signals) -> Any:
    def stop() -> None:
        if relay.stopping:
            os._exit(128 + number)  # the second signal: leases end by themselves
        relay.stop()

    return stop
