"""``postroom messages cancel``: remove messages that are not to be sent any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli.databases import checked
from postroom.cli.dead import DAY, MOST_NAMED, By, Code, Key, Topic, Wish, Yes, actor_of, refuse_unclear
from postroom.cli.options import Database, Json, MessageIds, Schema, TablePrefix
from postroom.cli.output import can_answer, print_json, print_text, progress
from postroom.errors import InvalidSetting, PostroomError
from postroom.settings import MOST_DAYS, Settings

if TYPE_CHECKING:
    from uuid import UUID

Every = Annotated[bool, typer.Option("--all", help="All messages that are neither sent nor dead.")]
OlderThan = Annotated[
    int | None,
    typer.Option("--older-than", min=0, max=MOST_DAYS, metavar="DAYS", help="Only those that were added longer ago."),
]


def cancel(  # noqa: PLR0913, PLR0917 - a command has that many options
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
    """Remove messages that were not sent yet. By ids, by a filter, or all of them. Not what is being sent, nor dead."""
    from postroom import dead_letters, unsent

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    wish = Wish(ids or (), topic, key, code, older_than, every, yes, by, as_json)
    refuse_unclear("cancel", wish)
    actor = actor_of(by)
    choice = unsent.Choice(wish.ids or None, topic, key, code, None if older_than is None else older_than * DAY)
    with checked(settings) as store:
        counted = store.run(unsent.count(store.names, choice))
        _agree(counted, wish)
        with progress("cancelled", counted) as tell:
            done = store.run(unsent.cancel(store.names, choice, actor, tell, settings.order))
        others = store.run(dead_letters.others(store.names, sorted(set(wish.ids) - {*done.ids, *done.sending})))
    others |= dict.fromkeys(done.sending, "being sent")
    if as_json:
        print_json({"cancelled": done.count, "not_done": {str(one): what for one, what in others.items()}})
    else:
        print_text(f"cancelled {_messages(done.count)}")
    if others:
        _refuse(others)


def _refuse(others: dict[UUID, str]) -> None:
    named = [f"{one} is {what}" for one, what in others.items()][:MOST_NAMED]
    more = f", and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    remedies = (
        "what is being sent can be cancelled if it fails, or once its relay has stopped; for dead ones: dead discard"
    )
    raise PostroomError(f"{len(others)} not cancelled ({remedies}): {', '.join(named)}{more}")


def _agree(counted: int, wish: Wish) -> None:
    """Many at once need a yes. Raises `typer.Exit` if the answer is no."""
    if wish.ids or wish.yes or not counted:
        return
    if not can_answer():
        raise InvalidSetting(f"this would cancel {_messages(counted)}: confirm it with --yes")
    if not typer.confirm(f"Cancel {_messages(counted)}?", err=True):
        print_text("nothing was done")
        raise typer.Exit(1)


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
