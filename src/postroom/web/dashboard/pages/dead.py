"""Dead letters, grouped by what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.admin import State
from postroom.web.dashboard.message_filter import asked, of_group
from postroom.web.dashboard.params import BadInput

if TYPE_CHECKING:
    from starlette.responses import Response

    from postroom.web.dashboard.visit import Visit

GROUPS_CACHED = 3.0
LOOKED_AT = 3_000
"""Letters that are grouped at first, in about a tenth of a second. More on request, and then for longer."""
LOOKS = (LOOKED_AT, 120_000, 1_000_000)
FURTHER_CACHED = 30.0
MOST = LOOKS[-1]


async def groups(visit: Visit) -> Response:
    """The groups, most letters first."""
    wanted = await asked(visit, visit.now)
    if wanted.state not in (None, State.DEAD):
        raise BadInput(f"state = {wanted.state!r} is not valid here: leave it out, or use dead")
    # Only some numbers, so that many people's looks are one.
    look = visit.params.number("look", 1, MOST) or LOOKED_AT
    most = next(most for most in LOOKS if most >= look)
    found = await visit.database.shared(
        ("groups", most, wanted.query),
        GROUPS_CACHED if most <= LOOKED_AT else FURTHER_CACHED,
        lambda admin: admin.dead_letter_groups(wanted.selection(), most=most),
    )
    return await visit.page(
        "dead",
        wanted=wanted,
        found=found,
        further=next((more for more in LOOKS if more > most), None) if found.more else None,
        total=sum(group.count for group in found.groups),
        rows=[(group, of_group(group.filter(found.as_of))) for group in found.groups],
    )
