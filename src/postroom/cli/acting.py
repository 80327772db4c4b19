"""Commands that act on many messages: cancel, requeue, discard. They select by the same options, and ask first."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from postroom.cli.filters import Containing, Error, Fingerprint, Queue, Since, Type, Until, moment
from postroom.cli.message_ids import MessageIds
from postroom.cli.options import Code, Database, Json, Key, Schema, TablePrefix, Topic
from postroom.cli.output import can_answer, counted, print_json, print_text, progress, warn
from postroom.errors import InvalidSetting, PostroomError
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.admin import ActResult, Admin, Count, Filter

MOST_NAMED = 10
LONGEST_NAME = 255

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it, for the audit log. Default: the system's user.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]


@dataclass(frozen=True)
class Act:
    """What a command does, and what it says about it."""

    verb: str
    done: str
    noun: str
    help: str
    older_than: Any
    """The option `--older-than`."""
    all_help: str
    refusal: str
    """Why some messages are left alone."""
    count: Callable[[Admin, Filter], Count]
    act: Callable[[Admin], Callable[..., ActResult]]
    warns_of_old: bool = False
    of_dead: bool = False
    """Whether it acts on dead letters, which have fingerprints."""

    def counted(self, count: int) -> str:
        """So many of them."""
        return counted(count, self.noun)


@dataclass(frozen=True)
class Request:
    """Which messages the command line asks for."""

    ids: tuple[UUID, ...]
    topic: str | None
    key: str | None
    code: str | None
    older_than: int | None
    every: bool
    yes: bool
    others: Mapping[str, Any]
    """The other fields of the filter."""

    def selection(self, verb: str) -> Filter:
        """The filter. Raises `InvalidSetting` unless the request says in exactly one way what to act on."""
        from postroom.admin import Filter

        fields = (self.topic, self.key, self.code, self.older_than, *self.others.values())
        filtered = any(one is not None for one in fields)
        given = [bool(self.ids), filtered, self.every]
        if sum(given) != 1:
            problem = f"say what to {verb}" if not any(given) else f"say in one way only what to {verb}"
            raise InvalidSetting(f"{problem}: give ids, or a filter (--topic, --key, --code, --older-than …), or --all")
        older_than = None if self.older_than is None else timedelta(days=self.older_than)
        return Filter(
            self.ids or None, topic=self.topic, key=self.key, code=self.code, older_than=older_than, **self.others
        )


def actor_of(by: str | None) -> str:
    """Who does it, for the audit: as `--by` says, or the system's user. Raises `InvalidSetting`."""
    if by is not None:
        if not 0 < len(by) <= LONGEST_NAME:
            raise InvalidSetting(f"--by has {len(by)} characters: give a name of 1 to {LONGEST_NAME}")
        return by
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # in a container whose user has no name
        return ""


def command(act: Act) -> Callable[..., None]:
    """The command of an act."""

    def run(  # noqa: PLR0913, PLR0917 - a command has that many options
        ids: MessageIds = None,
        topic: Topic = None,
        key: Key = None,
        code: Code = None,
        older_than: int | None = None,
        queue: Queue = None,
        type: Type = None,
        since: Since = None,
        until: Until = None,
        error: Error = None,
        containing: Containing = None,
        fingerprint: str | None = None,
        every: bool = False,
        yes: Yes = False,
        by: By = None,
        database: Database = None,
        schema: Schema = None,
        table_prefix: TablePrefix = None,
        as_json: Json = False,
    ) -> None:
        from postroom.admin import Admin

        others = {
            "queue": queue,
            "type": type,
            "since": moment("--since", since),
            "until": moment("--until", until),
            "error": error,
            "payload": containing,
            "fingerprint": fingerprint,
        }
        request = Request(tuple(ids or ()), topic, key, code, older_than, every, yes, others)
        which, actor = request.selection(act.verb), actor_of(by)
        with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
            result = _perform(act, admin, which, request, actor)
        _report(act, result, as_json=as_json)

    run.__doc__ = act.help
    run.__annotations__ |= {
        "older_than": act.older_than,
        "fingerprint": Fingerprint if act.of_dead else Annotated[str | None, typer.Option(hidden=True)],
        "every": Annotated[bool, typer.Option("--all", help=act.all_help)],
    }
    return run


def _perform(act: Act, admin: Admin, which: Filter, request: Request, actor: str) -> ActResult:
    counted = act.count(admin, which)
    if act.warns_of_old:
        _warn_of_old(counted)
    if not (request.ids or request.yes or not counted.total):
        ask(act.verb, act.counted(counted.total))
        which = replace(which, as_of=counted.as_of)  # a yes is for what was counted, and not for what came since
    with progress(act.done, counted.total) as tell:
        return act.act(admin)(which, actor=actor, progress=tell)


def ask(verb: str, what: str) -> None:
    """Many at once need a yes. Raises `typer.Exit` if the answer is no."""
    if not can_answer():
        raise InvalidSetting(f"this would {verb} {what}: confirm it with --yes")
    if not typer.confirm(f"{verb.capitalize()} {what}?", err=True):
        print_text("nothing was done")
        raise typer.Exit(1)


def _warn_of_old(counted: Count) -> None:
    if counted.older_than_inbox:
        window = Settings.load().inbox_retention_days
        warn(
            f"{counted.older_than_inbox:,} of {counted.total:,} were recorded more than {window} days ago, longer than "
            "inboxes keep their marks (INBOX_RETENTION_DAYS): a receiver that already has one of them will handle it "
            "again"
        )


def _report(act: Act, result: ActResult, *, as_json: bool) -> None:
    """What was done. Raises `PostroomError` where something was left alone."""
    from postroom.admin import as_json as jsonable

    told = jsonable(result)
    if as_json:
        print_json(told)
    else:
        print_text(f"{act.done} {act.counted(result.count)}")
    if others := told["not_done"]:
        named = [f"{one} is {what}" for one, what in others.items()][:MOST_NAMED]
        more = f", and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        raise PostroomError(f"{len(others)} not {act.done}{act.refusal}: {', '.join(named)}{more}")
