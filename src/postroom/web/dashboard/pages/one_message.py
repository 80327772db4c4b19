"""One message: where it stands, what happened to it, and what can be done."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from postroom.admin import State
from postroom.rules.why_not_sent import STREAMED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from postroom.admin import MessageDetails
    from postroom.web.dashboard.visit import Visit

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
UNSENT = (State.PENDING, State.WAITING, None)


async def message(visit: Visit) -> Response:
    """The page without the payload."""
    wanted = visit.params.uuid("id")
    found = await visit.database.read(lambda admin: admin.message(wanted, headers=True))
    return await _page(visit, found, shown=False)


async def reveal(visit: Visit) -> Response:
    """The page with the payload and the headers. The audit log says who looked."""
    visit.need_payloads()
    wanted = visit.params.uuid("id")
    found = await visit.database.read(lambda admin: admin.message(wanted, payload=True, headers=True))
    # First on record, then on the screen.
    await visit.database.write(
        lambda admin: admin.record_view(wanted, actor=visit.access.name, what="payload, headers")
    )
    return await _page(visit, found, shown=True)


async def _page(visit: Visit, found: MessageDetails, *, shown: bool) -> Response:
    failed_at = found.delivery.failed_at if found.delivery else None
    return await visit.page(
        "message",
        as_of=max(filter(None, (found.created_at, failed_at)), default=visit.now),
        live=not shown,
        message=found,
        shown=shown,
        trace=_trace(visit.trace_link, found.header_values or {}),
        may_requeue=found.status is State.DEAD,
        may_cancel=found.status in UNSENT and found.why.reason not in STREAMED,
    )


def _trace(link: str | None, headers: Mapping[str, str]) -> str | None:
    """The address of the message's trace."""
    written = next((value for name, value in headers.items() if name.lower() == "traceparent"), "")
    found = _TRACEPARENT.fullmatch(written.strip().lower())
    return link.replace("{trace_id}", found[1]) if link and found else None
