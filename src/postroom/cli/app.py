"""The commands. What they need is loaded when they run, so that `postroom --help` is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli import (
    bench,
    cdc,
    cleanup,
    consume,
    dashboard,
    dead,
    demo,
    doctor,
    events,
    importing,
    init,
    messages,
    relay,
    replay,
    sagas,
    schema,
    status,
    transactions,
)

app = typer.Typer(
    name="postroom",
    help="Postroom: what a service commits, the world receives; and each effect happens once.",
    epilog="All commands except demo and events read the database's URL from --database, POSTROOM_DATABASE, "
    "postroom.toml or pyproject.toml.",
    add_completion=False,
    rich_markup_mode=None,  # plain text is quicker, and is right without a terminal too
    context_settings={"help_option_names": ["-h", "--help"]},
)
messages_app = typer.Typer(help="Inspect and cancel messages, and free expired leases.", rich_markup_mode=None)
dead_app = typer.Typer(help="List, requeue and discard dead letters.", rich_markup_mode=None)
sagas_app = typer.Typer(help="List, show, resume, skip, abort and fork sagas.", rich_markup_mode=None)
transactions_app = typer.Typer(help="List, show, recover, decide and forget two-phase commits.", rich_markup_mode=None)
events_app = typer.Typer(help="Export event classes, and check what changes break.", rich_markup_mode=None)
cdc_app = typer.Typer(help="Watch and switch how the write-ahead log is read.", rich_markup_mode=None)

app.command("init")(init.init)
app.command("schema")(schema.schema)
app.command("relay")(relay.relay)
app.command("consume")(consume.consume)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("dashboard")(dashboard.dashboard)
app.add_typer(messages_app, name="messages")
messages_app.command("list")(messages.list_messages)
messages_app.command("show")(messages.show_message)
messages_app.command("replay")(replay.replay)
messages_app.command("cancel")(messages.cancel)
messages_app.command("release")(messages.release)
app.add_typer(dead_app, name="dead")
dead_app.command("list")(dead.list_dead)
dead_app.command("groups")(dead.groups)
dead_app.command("show")(dead.show)
dead_app.command("requeue")(dead.requeue)
dead_app.command("discard")(dead.discard)
app.add_typer(sagas_app, name="sagas")
sagas_app.command("list")(sagas.list_sagas)
sagas_app.command("show")(sagas.show_saga)
sagas_app.command("resume")(sagas.resume)
sagas_app.command("skip")(sagas.skip)
sagas_app.command("abort")(sagas.abort)
sagas_app.command("fork")(sagas.fork)
app.add_typer(transactions_app, name="transactions")
transactions_app.command("list")(transactions.list_transactions)
transactions_app.command("show")(transactions.show_transaction)
transactions_app.command("recover")(transactions.recover)
transactions_app.command("decide")(transactions.decide)
transactions_app.command("forget")(transactions.forget)
app.add_typer(cdc_app, name="cdc")
cdc_app.command("status")(cdc.status)
cdc_app.command("setup")(cdc.setup)
cdc_app.command("off")(cdc.off)
cdc_app.command("sweep")(cdc.sweep)
cdc_app.command("debezium")(cdc.debezium)
app.add_typer(events_app, name="events")
events_app.command("export")(events.export)
events_app.command("check")(events.check)
app.command("import")(importing.import_messages)
app.command("cleanup")(cleanup.cleanup)
app.command("demo")(demo.demo)
app.command("bench")(bench.bench)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"postroom {version('postroom')}")
    except PackageNotFoundError:
        typer.echo("postroom (not installed)")
    raise typer.Exit


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


@app.callback(invoke_without_command=True)
def postroom(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Postroom: what a service commits, the world receives; and each effect happens once."""
    _help_without_command(context)


@messages_app.callback(invoke_without_command=True)
def _messages(context: typer.Context) -> None:
    """Inspect and cancel messages, and free expired leases."""
    _help_without_command(context)


@dead_app.callback(invoke_without_command=True)
def _dead(context: typer.Context) -> None:
    """List, requeue and discard dead letters."""
    _help_without_command(context)


@sagas_app.callback(invoke_without_command=True)
def _sagas(context: typer.Context) -> None:
    """List, show, resume, skip, abort and fork sagas."""
    _help_without_command(context)


@transactions_app.callback(invoke_without_command=True)
def _transactions(context: typer.Context) -> None:
    """List, show, recover, decide and forget two-phase commits."""
    _help_without_command(context)


@cdc_app.callback(invoke_without_command=True)
def _cdc(context: typer.Context) -> None:
    """Watch and switch how the write-ahead log is read."""
    _help_without_command(context)


@events_app.callback(invoke_without_command=True)
def _events(context: typer.Context) -> None:
    """Export event classes, and check what changes break."""
    _help_without_command(context)
