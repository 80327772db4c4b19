"""Sagas: the list, and one with its timeline and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from postroom.admin import SagaFilter, SagaState
from postroom.errors import SagaActRefused, SagaNotFound
from postroom.message import Message
from postroom.web.dashboard.saga_view import acts_on, acts_on_all, fork_steps, timeline

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.admin import Admin
    from postroom.web.dashboard.visit import Visit

PER_PAGE = 50


async def sagas(visit: Visit) -> Response:
    """A page of the list."""
    params = visit.params
    name, state, code = params.text("name", 255), params.choice("state", SagaState), params.text("code", 255)
    before = params.number("before")
    which = SagaFilter(name, states=[state] if state else None, code=code)
    page = await visit.database.read(lambda admin: admin.sagas(which, limit=PER_PAGE, before=before))
    given = {"name": name, "state": state.value if state else None, "code": code}
    return await visit.page(
        "sagas",
        listed=page,
        states=list(SagaState),
        given={key: value or "" for key, value in given.items()},
        query=urlencode({key: value for key, value in given.items() if value}),
        before=before,
        acts=acts_on_all(state),
    )


async def saga(visit: Visit) -> Response:
    """Everything about one, without its data."""
    return await _page(visit, data=False)


async def reveal(visit: Visit) -> Response:
    """The same with its data. The audit log says who looked."""
    visit.need_payloads()
    return await _page(visit, data=True)


async def _page(visit: Visit, *, data: bool) -> Response:
    name, identifier = visit.params.needed("name"), visit.params.needed("id")
    found, total = await visit.database.read(
        lambda admin: (admin.saga(name, identifier, data=data), admin.count_sagas(SagaFilter(name, ids=[identifier])))
    )
    if data:
        await visit.database.write(
            lambda admin: admin.record_view(found.message_id, actor=visit.access.name, what="saga data")
        )
    return await visit.page(
        "saga",
        live=not data,
        saga=found,
        as_of=total.as_of,
        shown=data,
        timeline=timeline(found),
        acts=acts_on(found.state, found.direction),
        forks=fork_steps(found),
    )


async def fork(visit: Visit) -> Response:
    """Start a new saga from a step of an old one: first ask from which, then do it.

    A form that is sent twice starts one saga: it has the new one's id in it.
    """
    visit.need_actions()
    name, identifier = visit.params.needed("name"), visit.params.needed("id")
    step, new_id = visit.params.text("step", 255), visit.params.text("new_id", 255)
    if step is None or new_id is None:
        found = await visit.database.read(lambda admin: admin.saga(name, identifier))
        return await visit.page("fork", saga=found, steps=fork_steps(found), new_id=str(Message.new("any").id))
    reason = visit.params.text("reason") or ""
    try:
        await visit.database.write(
            lambda admin: admin.fork_saga(
                name, identifier, step=step, new_id=new_id, actor=visit.access.name, reason=reason
            )
        )
    except SagaActRefused:
        if not await visit.database.read(lambda admin: _is_fork(admin, name, new_id, identifier)):
            raise
    return visit.redirect(f"saga?{urlencode({'name': name, 'id': new_id})}")


def _is_fork(admin: Admin, name: str, new_id: str, identifier: str) -> bool:
    """Whether the form was sent before, and has started its saga."""
    try:
        return admin.saga(name, new_id).fork_of == identifier
    except SagaNotFound:
        return False
