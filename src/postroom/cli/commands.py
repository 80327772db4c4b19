"""Every command by its name. Its module is loaded when it runs: `postroom --help` is quick, and a relay starts soon."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    "init": "init:init",
    "schema": "schema:schema",
    "relay": "relay:relay",
    "consume": "consume:consume",
    "status": "status:status",
    "doctor": "doctor:doctor",
    "dashboard": "dashboard:dashboard",
    "messages list": "messages:list_messages",
    "messages show": "messages:show_message",
    "messages replay": "replay:replay",
    "messages cancel": "messages:cancel",
    "messages release": "messages:release",
    "dead list": "dead:list_dead",
    "dead groups": "dead:groups",
    "dead show": "dead:show",
    "dead requeue": "dead:requeue",
    "dead discard": "dead:discard",
    "sagas list": "sagas:list_sagas",
    "sagas show": "sagas:show_saga",
    "sagas resume": "sagas:resume",
    "sagas skip": "sagas:skip",
    "sagas abort": "sagas:abort",
    "sagas fork": "sagas:fork",
    "transactions list": "transactions:list_transactions",
    "transactions show": "transactions:show_transaction",
    "transactions recover": "transactions:recover",
    "transactions decide": "transactions:decide",
    "transactions forget": "transactions:forget",
    "cdc status": "cdc:status",
    "cdc setup": "cdc:setup",
    "cdc off": "cdc:off",
    "cdc sweep": "cdc:sweep",
    "cdc debezium": "cdc:debezium",
    "events export": "events:export",
    "events check": "events:check",
    "import": "importing:import_messages",
    "cleanup": "cleanup:cleanup",
    "demo": "demo:demo",
    "bench": "bench:bench",
}
"""Each command's module in `postroom.cli`, and its function there."""

GROUPS = {
    "messages": "Inspect and cancel messages, and free expired leases.",
    "dead": "List, requeue and discard dead letters.",
    "sagas": "List, show, resume, skip, abort and fork sagas.",
    "transactions": "List, show, recover, decide and forget two-phase commits.",
    "events": "Export event classes, and check what changes break.",
    "cdc": "Watch and switch how the write-ahead log is read.",
}
"""The commands that have commands of their own, and their help."""


def function_of(name: str) -> Callable[..., None]:
    """The function of a command; loads its module."""
    module, _, function = COMMANDS[name].partition(":")
    found: Callable[..., None] = getattr(import_module(f"postroom.cli.{module}"), function)
    return found
