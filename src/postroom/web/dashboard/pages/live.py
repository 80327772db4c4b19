"""The stream that says when something has changed. What has changed, a page asks for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, StreamingResponse

from postroom.errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

EVERY = 2.0
"""Seconds between looks, which all tabs share."""
LONGEST = 30.0
"""Seconds after which a stream ends, so that a server which stops waits no longer; browsers open the next one."""


async def events(visit: Visit) -> Response:
    """Server-sent events."""
    if visit.is_wsgi:
        return PlainTextResponse("there is no stream under WSGI: the pages poll", 404)
    headers = {"x-accel-buffering": "no"}  # for nginx
    return StreamingResponse(_changes(visit), media_type="text/event-stream", headers=headers)


async def _changes(visit: Visit) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    loop = asyncio.get_running_loop()
    end, seen = loop.time() + LONGEST, await _token(visit)
    while loop.time() < end:
        await asyncio.sleep(EVERY)
        now = await _token(visit)
        if now != seen:
            yield "event: changed\ndata: \n\n"
        else:
            yield ": nothing new\n\n"
        seen = now
    yield "event: end\ndata: \n\n"


async def _token(visit: Visit) -> str:
    try:
        return await visit.database.shared("change", EVERY / 2, lambda admin: admin.change_token())
    except PostroomError:
        return "away"
