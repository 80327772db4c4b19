"""Acts on one, on a selection, or on everything that a filter showed: first ask, then do, then tell each result."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.responses import HTMLResponse, StreamingResponse

from postroom.web.dashboard.acts import DESTRUCTIVE, DONE, MEANINGS, MESSAGE_ACTS, SAGA_ACTS, SagaAct, read_act
from postroom.web.dashboard.failures import failure_of
from postroom.web.dashboard.visit import CACHED, told_everywhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from concurrent.futures import Future

    from starlette.responses import Response

    from postroom.web.dashboard.acts import MessageAct, Result
    from postroom.web.dashboard.visit import Visit

EVERY = 0.25
"""Seconds between two reports of progress."""
_HERE = "<!-- progress -->"
_log = logging.getLogger("postroom.web.dashboard")
_under_way: set[Future[Result]] = set()


async def confirm(visit: Visit) -> Response:
    """Say how many there are, and ask for the reason."""
    visit.need_actions()
    act = await read_act(visit)
    counted = await visit.database.read(act.count)
    return await visit.page(
        "confirm",
        act=act,
        found=counted,
        verb={**MESSAGE_ACTS, **SAGA_ACTS}[act.action],
        meaning=MEANINGS[act.action],
        destructive=act.action in DESTRUCTIVE,
        asks_step=act.action == "skip",
        fields=act.fields(),
    )


async def act(visit: Visit) -> Response:
    """Do it, and show progress while it is done.

    The page arrives in parts, so that it needs no script, and no memory that the processes of a server would have to
    share. It goes on to its end if the browser leaves.
    """
    visit.need_actions()
    wanted = await read_act(visit)
    reason = visit.params.text("reason") or ""
    counted = visit.params.number("total", 0) or 0
    overview = await visit.database.shared("overview", CACHED, lambda admin: admin.overview())
    page = visit.templates.render(
        "acting",
        **{**visit.frame(), **told_everywhere(overview)},
        act=wanted,
        here=_HERE,
        done=DONE[wanted.action],
    )
    return StreamingResponse(_parts(visit, wanted, reason, counted, page), media_type=HTMLResponse.media_type)


async def _parts(visit: Visit, wanted: MessageAct | SagaAct, reason: str, total: int, page: str) -> AsyncIterator[str]:
    before, _, after = page.partition(_HERE)
    yield before
    treated: list[int] = []
    future = visit.database.act(lambda admin: wanted.run(admin, visit.access.name, reason, treated.append))
    _under_way.add(future)
    future.add_done_callback(_under_way.discard)
    told, waiting = -1, asyncio.wrap_future(future)
    while not (await asyncio.wait([waiting], timeout=EVERY))[0]:
        if (now := sum(treated)) != told:
            told = now
            yield visit.templates.render("progress", done=now, total=max(total, now))
    yield _outcome(visit, wanted, waiting)
    yield after


def _outcome(visit: Visit, wanted: MessageAct | SagaAct, done: asyncio.Future[Result]) -> str:
    visit.database.forget_shared()
    error = done.exception()
    if error is None:
        return visit.templates.render("result", result=done.result(), act=wanted, word=DONE[wanted.action])
    failure = failure_of(error if isinstance(error, Exception) else RuntimeError())
    if not failure.explained:
        _log.error("the act %s failed", wanted.action, exc_info=error)
    return visit.templates.render("act_failed", failure=failure, act=wanted)
