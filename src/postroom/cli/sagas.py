"""``postroom sagas``: list, show, resume, skip, abort and fork sagas."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.acting import By, Reason, actor_of
from postroom.cli.options import Before, Code, Database, Json, Limit, Schema, TablePrefix
from postroom.cli.output import print_json, print_text, shown
from postroom.cli.pages import PagePrinter
from postroom.cli.saga_acting import SagaAct, StartedDaysAgo, age, command
from postroom.rules.saga_state import SagaState

PAGES = PagePrinter(
    "sagas",
    {
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
    },
    spare=("position", "tries", "error message", "held by", "due (UTC)", "started (UTC)", "error"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The saga's name.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The saga's id.")]
OnlyName = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only sagas of this name.")]
States = Annotated[
    list[SagaState] | None, typer.Option("--state", help="Only sagas in this state. May be given several times.")
]


def list_sagas(  # noqa: PLR0913, PLR0917 - a command has that many options
    name: OnlyName = None,
    state: States = None,
    code: Code = None,
    older_than: StartedDaysAgo = None,
    limit: Limit = 50,
    before: Before = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List sagas, newest first."""
    from postroom.admin import Admin, SagaFilter

    which = SagaFilter(name, states=state or None, code=code, older_than=age(older_than))
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        page = admin.sagas(which, limit=limit, before=before)
    PAGES.print(page, as_json=as_json)


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


resume = command(
    SagaAct(
        verb="resume",
        help="Let parked sagas go on, by name and ids, by filter or all of them. Their attempts start again at 0.",
        states=frozenset({SagaState.PARKED}),
        act=lambda admin: admin.resume_sagas,
    )
)
skip = command(
    SagaAct(
        verb="skip a step of",
        help="Skip the step or compensation that fails, because it was done by hand, and let the saga go on.",
        states=frozenset({SagaState.PARKED, SagaState.STRANDED}),
        act=lambda admin: admin.skip_saga_steps,
        of_a_step=True,
    )
)
abort = command(
    SagaAct(
        verb="abort",
        help="Undo sagas that have not ended, even while they run. Not what has passed its pivot.",
        states=frozenset(SagaState) - {SagaState.COMPENSATING, SagaState.COMPLETED, SagaState.COMPENSATED},
        act=lambda admin: admin.abort_sagas,
    )
)


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
