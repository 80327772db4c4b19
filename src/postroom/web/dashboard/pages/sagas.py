"""Sagas: the list, and one with its timeline and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from postroom.admin import SagaFilter, SagaState
from postroom.web.dashboard.saga_view import acts_on, timeline

if TYPE_CHECKING:
    from starlette.responses import Response

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
    )
