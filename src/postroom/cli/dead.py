"""``postroom dead``: list, group, show, requeue and discard dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from postroom.cli.acting import Act, command
from postroom.cli.filters import Containing, Error, Fingerprint, Queue, Since, Type, Until, moment
from postroom.cli.message_ids import MessageId
from postroom.cli.messages import show_one
from postroom.cli.options import (
    Before,
    Code,
    Database,
    FailedDaysAgo,
    Json,
    Key,
    Limit,
    Schema,
    TablePrefix,
    Topic,
)
from postroom.cli.output import print_json, print_table, print_text
from postroom.cli.pages import PagePrinter
from postroom.rules.naming import SAGA_START, is_saga_queue

PAGES = PagePrinter(
    "dead letters",
    {
        "position": "position",
        "queue": "queue",
        "topic": "topic",
        "key": "key",
        "attempts": "tries",
        "failed_at": "failed (UTC)",
        "error_code": "error",
        "error_message": "error message",
        "id": "id",
    },
    spare=("queue", "tries", "failed (UTC)", "error message", "key", "topic", "error"),
)


def list_dead(  # noqa: PLR0913, PLR0917 - a command has that many options
    limit: Limit = 50,
    before: Before = None,
    topic: Topic = None,
    key: Key = None,
    code: Code = None,
    older_than: FailedDaysAgo = None,
    queue: Queue = None,
    type: Type = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    containing: Containing = None,
    fingerprint: Fingerprint = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List dead letters of all queues, newest first."""
    from postroom.admin import Admin, Filter

    which = Filter(
        queue=queue,
        topic=topic,
        key=key,
        code=code,
        older_than=None if older_than is None else timedelta(days=older_than),
        type=type,
        since=moment("--since", since),
        until=moment("--until", until),
        error=error,
        payload=containing,
        fingerprint=fingerprint,
    )
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        page = admin.dead_letters(which, limit=limit, before=before)
    PAGES.print(page, as_json=as_json)
    if not as_json and any(is_saga_queue(letter.queue) and letter.type == SAGA_START for letter in page):
        print_text("Some of them are parked sagas: act on these with `postroom sagas`")


def groups(
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, help="How many dead letters to look at.")
    ] = 100_000,
    queue: Queue = None,
    topic: Topic = None,
    code: Code = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Group dead letters by their errors."""
    from postroom.admin import Admin, Filter
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.dead_letter_groups(Filter(queue=queue, topic=topic, code=code), most=most)
    if as_json:
        print_json(jsonable(found))
        return
    if not found:
        print_text("no dead letters")
        return
    rows = [
        (one.count, one.queue, one.topic, one.code, one.fingerprint, one.last_failed, one.newest_id) for one in found
    ]
    titles = ("letters", "queue", "topic", "error", "fingerprint", "last failed (UTC)", "newest id")
    print_table(titles, rows, right=("letters",), spare=("queue", "last failed (UTC)", "newest id"))
    if found.more:
        print_text(f"There are more than the {found.looked_at:,} that were looked at: see --most")


def show(
    id: MessageId,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show a dead letter, its last error and its history."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.dead_letter(id)
    show_one(jsonable(found), as_json=as_json)


requeue = command(
    Act(
        verb="requeue",
        done="requeued",
        noun="dead letter",
        help="Requeue dead letters, by id, by filter or all of them. Their attempts start again at 0.",
        older_than=FailedDaysAgo,
        all_help="All dead letters.",
        refusal=", because only dead ones can be",
        count=lambda admin, which: admin.count_dead_letters(which),
        act=lambda admin: admin.requeue,
        of_dead=True,
        warns_of_old=True,
    )
)
discard = command(
    Act(
        verb="discard",
        done="discarded",
        noun="dead letter",
        help="Remove dead letters for good, by id, by filter or all of them.",
        older_than=FailedDaysAgo,
        all_help="All dead letters.",
        refusal=" (only dead ones can be; for sagas: postroom sagas skip or abort)",
        count=lambda admin, which: admin.count_dead_letters(which),
        act=lambda admin: admin.discard,
        of_dead=True,
    )
)
