"""Commands that act on many sagas: resume, skip, abort. They select by the same options, and ask first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli.acting import MOST_NAMED, By, Reason, Yes, actor_of, ask
from postroom.cli.options import Code, Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, print_json, print_text, progress
from postroom.errors import InvalidSetting, PostroomError
from postroom.settings import MOST_DAYS

if TYPE_CHECKING:
    from postroom.admin import Admin, SagaActResult, SagaFilter
    from postroom.rules.saga_state import SagaState

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The sagas' name.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The sagas' ids. Without: all that can be.")]
StartedDaysAgo = Annotated[
    float | None,
    typer.Option(
        "--older-than", min=0, max=MOST_DAYS, metavar="DAYS", help="Only those started more than this many days ago."
    ),
]
Every = Annotated[bool, typer.Option("--all", help="Sagas of all names.")]
Step = Annotated[str | None, typer.Option("--step", metavar="STEP", help="The step. Needed in a group.")]


@dataclass(frozen=True)
class SagaAct:
    """What a command does."""

    verb: str
    help: str
    states: frozenset[SagaState]
    """What it acts on where no ids are given."""
    act: Callable[[Admin], Callable[..., SagaActResult]]
    of_a_step: bool = False
    """Whether it has the option `--step`."""


@dataclass(frozen=True)
class Request:
    """Which sagas the command line asks for."""

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
        return SagaFilter(self.name, states=states, code=self.code, older_than=age(self.older_than))


def command(act: SagaAct) -> Callable[..., None]:
    """The command of an act."""

    def run(  # noqa: PLR0913, PLR0917 - a command has that many options
        name: Name = None,
        ids: Ids = None,
        step: Step = None,
        code: Code = None,
        older_than: StartedDaysAgo = None,
        every: Every = False,
        yes: Yes = False,
        by: By = None,
        reason: Reason = "",
        database: Database = None,
        schema: Schema = None,
        table_prefix: TablePrefix = None,
        as_json: Json = False,
    ) -> None:
        from postroom.admin import Admin

        request = Request(name, tuple(ids or ()), code, older_than, every, yes)
        which = request.selection(act.verb, act.states)
        options: dict[str, Any] = {"actor": actor_of(by), "reason": reason} | ({"step": step} if act.of_a_step else {})
        with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
            result = _perform(act, admin, which, request, options)
        _report(result, as_json=as_json)

    run.__doc__ = act.help
    signature = inspect.signature(run, eval_str=True)
    options = [one for one in signature.parameters.values() if act.of_a_step or one.name != "step"]
    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]  # what typer reads
    return run


def age(days: float | None) -> timedelta | None:
    """What `--older-than` says."""
    return None if days is None else timedelta(days=days)


def _perform(act: SagaAct, admin: Admin, which: SagaFilter, request: Request, options: dict[str, Any]) -> SagaActResult:
    total = len(request.ids)
    if not request.ids:
        found = admin.count_sagas(which)
        total = found.total
        if total and not request.yes:
            ask(act.verb, counted(total, "saga"))
            which = replace(which, as_of=found.as_of)  # a yes is for what was counted, and not for what came since
    with progress(act.verb, total) as tell:
        return act.act(admin)(which, progress=tell, **options)


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
