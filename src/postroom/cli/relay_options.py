"""The options of ``postroom relay``. All but the first six are settings, by their names."""

from __future__ import annotations

from typing import Annotated, Literal

from postroom.cli.option import option

Once = Annotated[bool, option("--once", help="Deliver what can be sent now, then exit.")]
UntilEmpty = Annotated[bool, option("--until-empty", help="Exit when no relay has anything left to send now.")]
Processes = Annotated[int, option(min=1, max=256, metavar="N", help="Run and supervise this many relay processes.")]
WorkerName = Annotated[
    str | None, option(metavar="NAME", help="Name of this relay. Default: host, process id and a number.")
]
BrokerFor = Annotated[
    list[str] | None,
    option(
        metavar="PATTERN=URL",
        help="Deliver topics that match to this broker, as in 'payments.*=kafka://host'; may be repeated. "
        "Default: POSTROOM_BROKERS.",
    ),
]
Broker = Annotated[
    str | None,
    option(
        metavar="URL",
        help="Where to deliver: amqp://host, https://host/path, kafka://host, nats://host, redis://host, "
        "celery://module:app, python:module:function, stdout: (JSON lines). Default: POSTROOM_BROKER.",
    ),
]
App = Annotated[
    list[str] | None,
    option(
        metavar="MODULE:OBJECT",
        help="Run a saga, recover a TwoPhaseCommit, or a list of these, as in shop.orders:place_order; may be "
        "repeated. Without a broker, only these run.",
    ),
]
SagaConcurrency = Annotated[int | None, option(metavar="N", help="Instances of each saga that run in parallel (16).")]
Concurrency = Annotated[int | None, option(metavar="N", help="Publish calls in flight (4).")]
BatchSize = Annotated[int | None, option(metavar="N", help="Messages claimed at once (1000).")]
PollInterval = Annotated[float | None, option(metavar="SECONDS", help="The longest pause of an idle relay (0.5).")]
LockLease = Annotated[float | None, option(metavar="SECONDS", help="The lease on a message without a key (120).")]
LaneLease = Annotated[
    float | None, option(metavar="SECONDS", help="The lease on a lane, for messages with a key (15).")
]
MaxAttempts = Annotated[int | None, option(metavar="N", help="Failed sends after which a message is dead (6).")]
Backoff = Annotated[
    str | None,
    option(metavar="LIST", help="Seconds until the next attempt; the last repeats (5,10,20,40,80,160)."),
]
BrokerTimeout = Annotated[float | None, option(metavar="MS", help="A send that takes longer has failed (2500).")]
MaxInFlightBytes = Annotated[
    int | None, option(metavar="BYTES", help="Payload bytes held in memory at a time, roughly (16 MB).")
]
KeyOrder = Annotated[
    Literal["hold", "skip"] | None,
    option(help="What a dead message does to those behind it on its key (hold)."),
]
Dedup = Annotated[
    bool | None,
    option("--dedup/--no-dedup", help="Skip a message whose content was sent to the same topic before."),
]
Cdc = Annotated[
    bool | None,
    option("--cdc/--no-cdc", help="Read messages from PostgreSQL's write-ahead log, see the guide on CDC."),
]
CdcMaxWalBytes = Annotated[
    int | None,
    option(metavar="BYTES", help="With --cdc: go back to the table when the log kept for it exceeds this."),
]
CleanupEvery = Annotated[
    float | None,
    option(metavar="SECONDS", help="Clean up this often, as `postroom cleanup` does (never)."),
]


def brokers_of(given: list[str] | None) -> dict[str, str] | None:
    """The patterns and URLs of `--broker-for`."""
    if not given:
        return None
    brokers: dict[str, str] = {}
    for one in given:
        pattern, _, url = one.partition("=")
        if not pattern or not url:
            import typer

            raise typer.BadParameter("--broker-for takes PATTERN=URL, as in 'payments.*=kafka://host'")
        brokers[pattern] = url
    return brokers
