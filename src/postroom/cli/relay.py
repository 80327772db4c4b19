"""``postroom relay``: deliver what is in the outbox."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from postroom.cli import collect_as_usual, late_calls
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
from postroom.cli.relay_options import (
    App,
    Backoff,
    BatchSize,
    Broker,
    BrokerFor,
    BrokerTimeout,
    Cdc,
    CdcMaxWalBytes,
    CleanupEvery,
    Concurrency,
    Dedup,
    KeyOrder,
    LaneLease,
    LockLease,
    MaxAttempts,
    MaxInFlightBytes,
    Once,
    PollInterval,
    Processes,
    SagaConcurrency,
    UntilEmpty,
    WorkerName,
    brokers_of,
)
from postroom.cli.signals import stop_on_signals
from postroom.compose.brokers import check_default
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules.naming import SAGA_QUEUE, is_saga_queue
from postroom.runtime.functions import load_object
from postroom.settings import COMMAND_LINE, MOST_PORT, Settings, provided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.cli.late_calls import LateCalls
    from postroom.cli.telemetry import Telemetry
    from postroom.relay import Relay, Report
    from postroom.saga import Saga
    from postroom.twophase import TwoPhaseCommit

SUPERVISED = "POSTROOM_SUPERVISED"
"""Set for the processes of `--processes`: they stop when their standard input ends, because then nobody minds them."""


class Apps(NamedTuple):
    """What of an application a relay runs."""

    sagas: list[Saga[Any]]
    transactions: list[TwoPhaseCommit]


class Mode(StrEnum):
    """When a relay ends by itself."""

    ALWAYS = "never"
    ONCE = "when nothing can be sent now"
    UNTIL_EMPTY = "when no relay has anything left to send"


def relay(  # noqa: PLR0913, PLR0917 - every setting of a relay is an option
    broker: Broker = None,
    broker_for: BrokerFor = None,
    app: App = None,
    once: Once = False,
    until_empty: UntilEmpty = False,
    processes: Processes = 1,
    worker: WorkerName = None,
    concurrency: Concurrency = None,
    saga_concurrency: SagaConcurrency = None,
    batch: BatchSize = None,
    poll_interval_sec: PollInterval = None,
    lock_lease_sec: LockLease = None,
    lane_lease_sec: LaneLease = None,
    max_attempts: MaxAttempts = None,
    backoff_sec: Backoff = None,
    broker_timeout_ms: BrokerTimeout = None,
    max_in_flight_bytes: MaxInFlightBytes = None,
    order: KeyOrder = None,
    dedup: Dedup = None,
    cdc: Cdc = None,
    cdc_max_wal_bytes: CdcMaxWalBytes = None,
    cleanup_every_sec: CleanupEvery = None,
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
    """Deliver messages, run sagas, recover transactions.

    It runs until SIGTERM or Ctrl-C; a second signal stops it at once.
    """
    given = {name: value for name, value in locals().items() if name in Settings.__struct_fields__}
    given["brokers"] = brokers_of(broker_for)
    mode = _mode(once=once, until_empty=until_empty)
    settings = _settings(given)
    if not settings.enabled:
        _say_that_it_is_off(as_json=as_json)
    elif processes > 1:
        code = _supervise(settings, given, app or [], processes, worker, mode)
        import typer

        raise typer.Exit(code)
    else:
        reasons: dict[str, str] = {}
        # What the code of the application does not say, the options do.
        with provided(COMMAND_LINE, {name: given[name] for name in ("database", "schema", "table_prefix")}):
            report, late = _deliver(settings, given, _apps(app or []), worker, mode, reasons)
        if as_json:
            print_json(asdict(report))
        if mode is Mode.ONCE:
            _fail_if_down(report, reasons, several=bool(settings.brokers))
        late_calls.leave(late)


def _mode(*, once: bool, until_empty: bool) -> Mode:
    if once and until_empty:
        import typer

        raise typer.BadParameter("--once and --until-empty are two ways to end: give one of them")
    return Mode.ONCE if once else Mode.UNTIL_EMPTY if until_empty else Mode.ALWAYS


def _settings(given: dict[str, Any]) -> Settings:
    settings = Settings.load(**given)
    check_default(None, settings)
    if any(url.partition(":")[0] == "memory" for url in (settings.broker or "", *settings.brokers.values())):
        raise InvalidSetting("memory: is for tests: the messages would count as sent, and be lost when the relay ends")
    return settings


def _apps(addresses: Sequence[str]) -> Apps:
    """What is at each ``module:object``: sagas and two-phase commits. Raises `InvalidSetting`."""
    found = Apps([], [])
    if not addresses:
        return found
    from postroom.saga import Saga
    from postroom.twophase import TwoPhaseCommit

    for address in addresses:
        loaded = load_object(address, f"--app {address}", "an object: write module:object")
        some = list(loaded) if isinstance(loaded, list | tuple) else [loaded]
        if not some or not all(isinstance(one, Saga | TwoPhaseCommit) for one in some):
            hint = " (consumers are run by `postroom consume`)" if type(loaded).__name__ == "Consumer" else ""
            raise InvalidSetting(
                f"--app {address} is a {type(loaded).__name__}: give a Saga, a TwoPhaseCommit, or a list of them{hint}"
            )
        found.sagas.extend(one for one in some if isinstance(one, Saga))
        found.transactions.extend(one for one in some if isinstance(one, TwoPhaseCommit))
    return found


def _say_that_it_is_off(*, as_json: bool) -> None:
    warn("the relay is switched off (OUTBOX_ENABLED): messages are recorded, and wait")
    if as_json:
        from postroom.relay import Report

        print_json(asdict(Report()))


def _supervise(
    settings: Settings, given: dict[str, Any], apps: Sequence[str], processes: int, worker: str | None, mode: Mode
) -> int:
    from postroom.cli.processes import supervise

    ending = {Mode.ALWAYS: [], Mode.ONCE: ["--once"], Mode.UNTIL_EMPTY: ["--until-empty"]}[mode]
    arguments = [*ending, *(f"--app={app}" for app in apps), *_flags(given | {"http_port": None})]
    return supervise(processes, worker, arguments, _ports(settings, processes))


def _fail_if_down(report: Report, reasons: dict[str, str], *, several: bool) -> None:
    """Raise `BrokerUnavailable` where a run over what could be sent now could not send all of it."""
    down = [queue for queue in report.queues_down if not is_saga_queue(queue)]
    if down:
        which = f" ({', '.join(down)})" if several else ""
        why = "; ".join(dict.fromkeys(reasons[queue].rstrip(".") for queue in down))
        raise BrokerUnavailable(f"the broker cannot be reached{which}: {why}; what is left waits for the next run")
    if report.targets_down:
        why = "; ".join(f"{topic}: {reason}" for topic, reason in sorted(report.targets_down.items()))
        raise BrokerUnavailable(f"some topics take no messages: {why}; `postroom status` shows how many messages wait")
    if report.queues_down:
        why = "; ".join(f"{queue.removeprefix(SAGA_QUEUE)}: {reasons[queue]}" for queue in report.queues_down)
        raise BrokerUnavailable(f"not all sagas could be run: {why}")


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
    settings: Settings,
    given: dict[str, Any],
    apps: Apps,
    worker: str | None,
    mode: Mode,
    reasons: dict[str, str],
) -> tuple[Report, LateCalls]:
    """Run a relay; `reasons` gets, for each queue, why nothing can be done there."""
    from postroom.cli.telemetry import telemetry
    from postroom.relay import Relay
    from postroom.telemetry.events import DATABASE, Event, Reachability, all_of

    def note(event: Event) -> None:
        if isinstance(event, Reachability) and event.what != DATABASE and not event.reachable:
            reasons[event.queue] = event.reason

    broker = given.pop("broker")
    database = given.pop("database")
    told = telemetry(settings)
    hook = all_of(note, told.hook)
    relay = Relay(database, broker, sagas=apps.sagas, transactions=apps.transactions, worker=worker, hook=hook, **given)
    gc.freeze()  # what is loaded by now stays: the collector need not look at it again and again
    collect_as_usual()
    late = late_calls.run(_run(relay, told, mode))
    return relay.report, late


async def _run(relay: Relay, told: Telemetry, mode: Mode) -> None:
    stop_on_signals([relay])
    if os.environ.get(SUPERVISED):
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), relay.stop)
    async with told.serving:
        match mode:
            case Mode.ONCE:
                await relay.run_once()
            case Mode.UNTIL_EMPTY:
                await relay.run_until_empty()
            case Mode.ALWAYS:
                await relay.run()
            case _:
                assert_never(mode)
