"""Messages: the filter bar, the list, and the search line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from postroom.admin import State
from postroom.web.dashboard.message_filter import LABELS, asked, searched

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.admin import Page
    from postroom.web.dashboard.visit import Visit

PER_PAGE = 50
UNSENT = (None, State.PENDING, State.WAITING)
"""In these states, or without one, there may be something to cancel."""


async def messages(visit: Visit) -> Response:
    """A page of the list."""
    wanted = await asked(visit, visit.now)
    before = visit.params.number("before")
    page: Page[Any]
    if wanted.state is State.DEAD:
        page = await visit.database.read(
            lambda admin: admin.dead_letters(wanted.selection(), limit=PER_PAGE, before=before)
        )
    else:
        page = await visit.database.read(
            lambda admin: admin.messages(**wanted.listing(), limit=PER_PAGE, before=before)
        )
    return await visit.page(
        "messages",
        wanted=wanted,
        labels=LABELS,
        states=list(State),
        listed=page,
        before=before,
        is_dead=wanted.state is State.DEAD,
        may_cancel=wanted.state in UNSENT,
    )


async def search(visit: Visit) -> Response:
    """Turn a search line into a page."""
    found = searched(visit.params.text("q") or "")
    if isinstance(found, UUID):
        return visit.redirect(f"message?id={found}")
    return visit.redirect(f"messages?{urlencode(found)}")
