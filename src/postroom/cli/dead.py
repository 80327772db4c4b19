"""``postroom dead``: list, show, re-queue and discard dead letters."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from postroom.cli.databases import checked
from postroom.cli.messages import show_one
from postroom.cli.options import Database, Json, MessageId, MessageIds, Schema, TablePrefix
from postroom.cli.output import can_answer, on_terminal, print_json, print_table, print_text, progress, shown, warn
from postroom.errors import InvalidSetting, PostroomError
from postroom.settings import MOST_DAYS, Settings

if TYPE_CHECKING:
    from postroom.dead_letters import Choice, Counted, Done
    from postroom.store.sql.steps import Steps

    Act = Callable[..., Steps[Done]]

DAY = 86_400.0
MOST_NAMED = 10
LONGEST_ERROR = 60
LONGEST_NAME = 255

COLUMNS = {
    "position": "position",
    "queue": "queue",
    "topic": "topic",
    "key": "key",
    "attempts": "tries",
    "failed_at": "failed (UTC)",
    "error_code": "error",
    "error_message": "it said",
    "id": "id",
}
"""What people are shown of a dead letter → its title."""
SPARE = ("queue", "tries", "failed (UTC)", "it said", "key", "topic", "error")
"""What a narrow terminal does without. Never the id, which `requeue` and `discard` want."""

Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this ordering key.")]
Code = Annotated[str | None, typer.Option("--code", metavar="CODE", help="Only this reason code.")]
OlderThan = Annotated[
    int | None,
    typer.Option(
        "--older-than",
        min=0,
        max=MOST_DAYS,
        metavar="DAYS",
        help="Only those that failed more than this many days ago.",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who does it, for the audit log. Default: the system's user.")
]


@dataclass(frozen=True)
class Wish:
    """What to act on, as the command line says it."""

    ids: Collection[UUID]
    topic: str | None
    key: str | None
    code: str | None
    older_than: int | None
    every: bool
    yes: bool
    by: str | None
    as_json: bool


def list_dead(  # noqa: PLR0913, PLR0917 - a command has that many options
    limit: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="At most this many.")] = 50,
    before: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**63 - 1, metavar="POSITION", help="Only messages before this position, for the next page."
        ),
    ] = None,
    topic: Topic = None,
    key: Key = None,
    code: Code = None,
    older_than: OlderThan = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List dead letters of all queues, newest first."""
    from postroom import dead_letters

    choice = _choice(None, topic, key, code, older_than)
    with checked(Settings.load(database=database, schema=schema, table_prefix=table_prefix)) as store:
        letters = store.run(dead_letters.listed(store.names, choice, limit, before))
    found = [{name: value for name, value in letter._asdict().items() if name != "lane"} for letter in letters]
    if as_json:
        print_json(found)
        return
    if not found:
        print_text("no dead letters")
        return
    rows = [[shown(letter[column])[:LONGEST_ERROR] for column in COLUMNS] for letter in found]
    print_table(list(COLUMNS.values()), rows, right=("position", "tries"), spare=SPARE)
    if on_terminal() and len(found) == limit:
        print_text(f"Older ones: --before {found[-1]['position']}")


def show(
    id: MessageId,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show a dead letter, its last error and its history."""
    from postroom import dead_letters

    with checked(Settings.load(database=database, schema=schema, table_prefix=table_prefix)) as store:
        found = store.run(dead_letters.show(store.names, id))
    show_one(found, as_json=as_json)


def requeue(  # noqa: PLR0913, PLR0917 - a command has that many options
    ids: MessageIds = None,
    topic: Topic = None,
    key: Key = None,
    code: Code = None,
    older_than: OlderThan = None,
    every: Every = False,
    yes: Yes = False,
    by: By = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Requeue dead letters, by id, by filter or all of them. Their attempts start again at 0."""
    from postroom import dead_letters

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    wish = Wish(ids or (), topic, key, code, older_than, every, yes, by, as_json)
    _act("re-queue", "requeued", dead_letters.requeue, wish, settings)


def discard(  # noqa: PLR0913, PLR0917 - a command has that many options
    ids: MessageIds = None,
    topic: Topic = None,
    key: Key = None,
    code: Code = None,
    older_than: OlderThan = None,
    every: Every = False,
    yes: Yes = False,
    by: By = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Remove dead letters for good, by id, by filter or all of them."""
    from postroom import dead_letters

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    wish = Wish(ids or (), topic, key, code, older_than, every, yes, by, as_json)
    _act("discard", "discarded", dead_letters.discard, wish, settings)


def _act(verb: str, done_word: str, act: Act, wish: Wish, settings: Settings) -> None:
    """Do it to all that are dead; those named that are not are told in the end, and the exit code is 1."""
    from postroom import dead_letters

    refuse_unclear(verb, wish)
    actor = actor_of(wish.by)
    choice = _choice(wish.ids or None, wish.topic, wish.key, wish.code, wish.older_than)
    with checked(settings) as store:
        window = settings.inbox_retention_days
        counted = store.run(dead_letters.count(store.names, choice, window * DAY))
        if verb == "re-queue":
            _warn_of_old(counted, window)
        _agree(verb, counted, wish)
        with progress(done_word, counted.all) as tell:
            done = store.run(act(store.names, choice, actor, tell))
        others = store.run(dead_letters.others(store.names, sorted(set(wish.ids) - set(done.ids))))
    if wish.as_json:
        print_json({done_word: done.count, "not_done": {str(one): what for one, what in others.items()}})
    else:
        print_text(f"{done_word} {_letters(done.count)}")
    if others:
        named = [f"{one} is {what}" for one, what in others.items()][:MOST_NAMED]
        more = f", and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        raise PostroomError(f"{len(others)} not {done_word}, because only dead ones can be: {', '.join(named)}{more}")


def _choice(
    ids: Collection[UUID] | None, topic: str | None, key: str | None, code: str | None, older_than: int | None
) -> Choice:
    from postroom.dead_letters import Choice

    return Choice(ids, topic, key, code, None if older_than is None else older_than * DAY)


def refuse_unclear(verb: str, wish: Wish) -> None:
    """Raise `InvalidSetting` unless it is said in exactly one way what to act on."""
    filtered = any(one is not None for one in (wish.topic, wish.key, wish.code, wish.older_than))
    given = [bool(wish.ids), filtered, wish.every]
    if sum(given) == 1:
        return
    ways = "give ids, or a filter (--topic, --key, --code, --older-than), or --all"
    problem = f"say what to {verb}" if not any(given) else f"say in one way only what to {verb}"
    raise InvalidSetting(f"{problem}: {ways}")


def _warn_of_old(counted: Counted, window: int) -> None:
    if counted.old:
        warn(
            f"{counted.old:,} of {counted.all:,} were recorded more than {window} days ago, for which inboxes keep "
            "their marks (INBOX_RETENTION_DAYS): a receiver that has got one of them after all will take it for new"
        )


def _agree(verb: str, counted: Counted, wish: Wish) -> None:
    """Many at once need a yes. Raises `typer.Exit` if the answer is no."""
    if wish.ids or wish.yes or not counted.all:
        return
    if not can_answer():
        raise InvalidSetting(f"this would {verb} {_letters(counted.all)}: confirm it with --yes")
    if not typer.confirm(f"{verb.capitalize()} {_letters(counted.all)}?", err=True):
        print_text("nothing was done")
        raise typer.Exit(1)


def _letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"


def actor_of(given: str | None) -> str:
    """Who does it, for the audit."""
    if given is not None:
        if not 0 < len(given) <= LONGEST_NAME:
            raise InvalidSetting(f"--by has {len(given)} characters: give a name of 1 to {LONGEST_NAME}")
        return given
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # in a container whose user has no name
        return ""
