"""Which function answers which address. All pages lie flat, so that every address on them can be relative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.web.dashboard.pages import acts, audit, dead, edit, live, lookup, messages, one_message, overview, sagas
from postroom.web.dashboard.pages import transactions as twophase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

    Handler = Callable[[Visit], Awaitable[Response]]

ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "/": {"GET": overview.overview},
    "/search": {"GET": messages.search},
    "/messages": {"GET": messages.messages},
    "/message": {"GET": one_message.message, "POST": one_message.reveal},
    "/edit": {"POST": edit.edit},
    "/replay": {"POST": edit.replay},
    "/dead": {"GET": dead.groups},
    "/sagas": {"GET": sagas.sagas},
    "/saga": {"GET": sagas.saga, "POST": sagas.reveal},
    "/fork": {"POST": sagas.fork},
    "/transactions": {"GET": twophase.transactions},
    "/transaction": {"GET": twophase.transaction},
    "/decide": {"POST": twophase.decide},
    "/lookup": {"GET": lookup.lookup, "POST": lookup.reveal},
    "/audit": {"GET": audit.audit},
    "/confirm": {"POST": acts.confirm},
    "/act": {"POST": acts.act},
    "/events": {"GET": live.events},
}
