"""Who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.admin.audit import ACTIONS
from postroom.web.dashboard.params import BadInput

if TYPE_CHECKING:
    from uuid import UUID

    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

PER_PAGE = 50


async def audit(visit: Visit) -> Response:
    """A page of the log."""
    params = visit.params
    action, actor, message = params.text("action"), params.text("actor", 255), params.text("message")
    if action is not None and action not in ACTIONS:
        raise BadInput(f"action = {action!r} is not valid: use {', '.join(ACTIONS)}")
    wanted: UUID | None = params.uuid("message") if message else None
    before = params.number("before")
    page = await visit.database.read(
        lambda admin: admin.audit(action=action, actor=actor, message=wanted, limit=PER_PAGE, before=before)
    )
    given = {"action": action, "actor": actor, "message": message}
    return await visit.page(
        "audit",
        entries=page,
        actions=ACTIONS,
        given={name: value or "" for name, value in given.items()},
        before=before,
    )
