"""``postroom sagas``: list, show, resume, skip, abort and fork sagas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli.acting import MOST_NAMED, By, Yes, actor_of, ask
from postroom.cli.options import Before, Code, Database, Json, Limit, Schema, TablePrefix
from postroom.cli.output import counted, on_terminal, print_json, print_table, print_text, progress, shown
from postroom.errors import InvalidSetting, PostroomError
from postroom.rules.saga_state import SagaState
from postroom.settings import MOST_DAYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.admin import Admin, SagaActResult, SagaFilter

LONGEST_ERROR = 60
COLUMNS = {
    "position": "position",
    "state": "state",
    "name": "saga",
    "id": "id",
    "started_at": "started (UTC)",
    "attempts": "tries",
    "due": "due (UTC)",
    "owner": "held by",
    "error_code": "error",
    "error_message": "error message",
}
"""What people are shown of a saga → its title."""
SPARE = ("position", "tries", "error message", "held by", "due (UTC)", "started (UTC)", "error")
"""What a narrow terminal does without. Never name and id, which the other commands want."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The saga's name.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The saga's id.")]
SomeName = Annotated[str | None, typer.Argument(metavar="NAME", help="The sagas' name.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The sagas' ids. Without: all that can be.")]
OnlyName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only sagas of this name.")]
States = Annotated[
    list[SagaState] | None, typer.Option("--state", help="Only sagas in this state. May be given several times.")
]
Age = Annotated[
    float | None,
    typer.Option(
        "--older-than", min=0, max=MOST_DAYS, metavar="DAYS", help="Only those started more than this many days ago."
    ),
]
Every = Annotated[bool, typer.Option("--all", help="Sagas of all names.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]
Step = Annotated[str | None, typer.Option("--step", metavar="STEP", help="The step. Needed in a group.")]


def list_sagas(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: OnlyName = None,
    state: States = None,
    code: Code = None,
    older_than: Age = None,
    limit: Limit = 50,
    before: Before = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List sagas, newest first."""
    from postroom.admin import Admin, SagaFilter
    from postroom.admin import as_json as jsonable

    which = SagaFilter(name, states=state or None, code=code, older_than=_age(older_than))
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        page = admin.sagas(which, limit=limit, before=before)
    if as_json:
        print_json(jsonable(page))
        return
    if not page:
        print_text("no sagas")
        return
    rows = [[shown(getattr(saga, column))[:LONGEST_ERROR] for column in COLUMNS] for saga in page]
    print_table(list(COLUMNS.values()), rows, right=("position", "tries"), spare=SPARE)
    if on_terminal() and page.next:
        print_text(f"Older ones: --before {page.next}")


def show_saga(
    name: Name,
    id: Id,
    data: Annotated[bool, typer.Option("--data", help="Print data, results and events too.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show what a saga has done, what comes next, and what to do if it is stuck."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable
    from postroom.cli.saga_timeline import print_data, print_saga

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        told = admin.saga(name, id, data=data)
    if as_json:
        print_json(jsonable(told, payload=data))
        return
    print_saga(told)
    if data:
        print_data(jsonable(told, payload=True))


@dataclass(frozen=True)
class _Request:
    """Which sagas the command line asks for, and who asks."""

    name: str | None
    ids: tuple[str, ...]
    code: str | None
    older_than: float | None
    every: bool
    yes: bool

    def selection(self, verb: str, states: frozenset[SagaState]) -> SagaFilter:
        """The filter. Raises `InvalidSetting` unless the request says clearly what to act on."""
        from postroom.admin import SagaFilter

        filtered = self.code is not None or self.older_than is not None
        if self.ids and (filtered or self.every):
            raise InvalidSetting(f"say in one way only what to {verb}: give ids, or a filter")
        if not (self.name or filtered or self.every):
            raise InvalidSetting(
                f"say what to {verb}: give a name and ids, or a name, or a filter (--code, --older-than), or --all"
            )
        if self.every and self.name:
            raise InvalidSetting(f"--all means sagas of all names: leave it out to {verb} those of {self.name!r}")
        if self.ids:
            return SagaFilter(self.name, self.ids)
        return SagaFilter(self.name, states=states, code=self.code, older_than=_age(self.older_than))


def resume(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: SomeName = None,
    ids: Ids = None,
    code: Code = None,
    older_than: Age = None,
    every: Every = False,
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Let parked sagas go on, by name and ids, by filter or all of them. Their attempts start again at 0."""
    from postroom.admin import Admin

    request = _Request(name, tuple(ids or ()), code, older_than, every, yes)
    which, who = request.selection("resume", frozenset({SagaState.PARKED})), actor_of(by)
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        act = partial(admin.resume_sagas, actor=who, reason=reason)
        result = _perform(admin, "resume", which, request, act)
    _report(result, as_json=as_json)


def skip(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: SomeName = None,
    ids: Ids = None,
    step: Step = None,
    code: Code = None,
    older_than: Age = None,
    every: Every = False,
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Skip the step or compensation that fails, because it was done by hand, and let the saga go on."""
    from postroom.admin import Admin

    request = _Request(name, tuple(ids or ()), code, older_than, every, yes)
    stuck = frozenset({SagaState.PARKED, SagaState.STRANDED})
    which, who = request.selection("skip a step of", stuck), actor_of(by)
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        act = partial(admin.skip_saga_steps, actor=who, reason=reason, step=step)
        result = _perform(admin, "skip a step of", which, request, act)
    _report(result, as_json=as_json)


def abort(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: SomeName = None,
    ids: Ids = None,
    code: Code = None,
    older_than: Age = None,
    every: Every = False,
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Undo sagas that have not ended, even while they run. Not what has passed its pivot."""
    from postroom.admin import Admin

    request = _Request(name, tuple(ids or ()), code, older_than, every, yes)
    forward = frozenset(SagaState) - {SagaState.COMPENSATING, SagaState.COMPLETED, SagaState.COMPENSATED}
    which, who = request.selection("abort", forward), actor_of(by)
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        act = partial(admin.abort_sagas, actor=who, reason=reason)
        result = _perform(admin, "abort", which, request, act)
    _report(result, as_json=as_json)


def fork(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: Name,
    id: Id,
    step: Annotated[str, typer.Option("--from", metavar="STEP", help="The step that the new saga begins with.")],
    new_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The new saga's id. Default: a UUID.")
    ] = None,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Start a new saga from a step of one that has ended or is parked, with what was done before that step."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        made = admin.fork_saga(name, id, step=step, new_id=new_id, actor=actor_of(by), reason=reason)
    if as_json:
        print_json(jsonable(made))
        return
    kept = f", with the results of {', '.join(made.kept)}" if made.kept else ""
    print_text(shown(f"started saga {made.name} {made.id} from step {step} of {made.fork_of}{kept}"))


def _perform(
    admin: Admin, verb: str, which: SagaFilter, request: _Request, act: Callable[..., SagaActResult]
) -> SagaActResult:
    total = len(request.ids)
    if not request.ids:
        found = admin.count_sagas(which)
        total = found.total
        if total and not request.yes:
            ask(verb, counted(total, "saga"))
            which = replace(which, as_of=found.as_of)  # a yes is for what was counted, and not for what came since
    with progress(verb, total) as tell:
        return act(which, progress=tell)


def _report(result: SagaActResult, *, as_json: bool) -> None:
    """What was done. Raises `PostroomError` where something was left alone."""
    from postroom.admin import as_json as jsonable
    from postroom.admin.saga_json import DONE

    done = DONE[result.action]
    if as_json:
        print_json(jsonable(result))
    else:
        print_text(f"{done} {counted(result.count, 'saga')}")
    if refused := result.refused:
        named = [f"{one.name} {one.id} ({one.reason})" for one in refused[:MOST_NAMED]]
        more = f", and {len(refused) - MOST_NAMED} more" if len(refused) > MOST_NAMED else ""
        raise PostroomError(f"{len(refused)} not {done}: {', '.join(named)}{more}")


def _age(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
