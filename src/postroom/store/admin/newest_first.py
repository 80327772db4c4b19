"""Look for messages newest first, with a limit on the work: a page ends when it is full, or when enough was looked at.

Rows are read backwards along an index. A search that finds little therefore takes several short requests, each of which
says how far it came, instead of one that reads the whole table.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.store.sql.operations import chunks
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

SCAN = 10_000
"""Rows that one request looks at, where the condition is quick to check."""
PAYLOAD_SCAN = 2_000
"""The same, where payloads must be read."""
LEAST_SCAN = 200
"""Rows of one place, however many places there are."""
NEAR = 1_000
"""Positions between which a moment is narrowed down."""
OUT_OF_STEP = timedelta(minutes=5)
"""Messages added within this time of each other may have positions in another order than their times."""
PARTS = 40
"""Places in one statement."""


class Place(NamedTuple):
    """Rows in the order of their positions, and which of them are wanted."""

    rows: str
    """A table with its alias, and the condition that is a prefix of an index: ``t d WHERE … ``."""
    position: str
    """The column of the position, by which the index goes on."""
    wanted: str = "1 = 1"


class Found(NamedTuple):
    """Positions, newest first."""

    positions: list[int]
    next: int | None
    """From before this position there may be more."""
    looked_at: int | None
    """How many rows were looked at, if the search ended before the page was full."""


class NewestFirst(SkipScan):
    """Finds positions in any number of places, in the order of all of them."""

    def newest(
        self,
        places: Sequence[Place],
        params: dict[str, Any],
        limit: int,
        *,
        before: int | None = None,
        after: int = 0,
        scan: int = SCAN,
    ) -> Steps[Found]:
        """The first `limit` that are wanted, between two positions."""
        if not places:
            return Found([], None, None)
        each = max(scan // len(places), LEAST_SCAN, limit + 1)
        # What is not given is left out: PostgreSQL takes a range for a few rows, unless its statistics tell otherwise.
        within = {"before": before, "after": after or None}
        params = {**params, **{name: value for name, value in within.items() if value is not None}}
        found: list[int] = []
        for some in chunks(places, PARTS):
            found += yield from self._wanted(some, params, each, limit + 1)
        found = sorted(set(found), reverse=True)  # a message may be in two places, or move from one to the other
        if len(found) > limit and len(places) == 1:  # then no row before them was left out
            return Found(found[:limit], found[limit - 1], None)
        # A place of which enough was looked at may have more, behind its last row that was looked at.
        looked_at, edge = 0, 0
        for some in chunks(places, PARTS):
            for count, lowest in (yield from self._looked_at(some, params, each)):
                looked_at += count
                edge = max(edge, lowest if count == each else 0)
        inside = [position for position in found if position >= edge]
        if len(inside) > limit:
            return Found(inside[:limit], inside[limit - 1], None)
        return Found(inside, edge or None, looked_at)

    def _wanted(self, places: Sequence[Place], params: dict[str, Any], scan: int, limit: int) -> Steps[list[int]]:
        each = " UNION ALL ".join(
            f"SELECT position FROM (SELECT position FROM ("
            f"{_rows(place, params, scan, f', CASE WHEN {place.wanted} THEN 1 ELSE 0 END AS wanted')}) r{n} "
            f"WHERE wanted = 1 ORDER BY position DESC LIMIT {limit}) p{n}"
            for n, place in enumerate(places)
        )
        found = yield Query(each, params)
        return [position for [position] in found.rows]

    def _looked_at(self, places: Sequence[Place], params: dict[str, Any], scan: int) -> Steps[list[tuple[int, int]]]:
        each = " UNION ALL ".join(
            f"SELECT count(*), coalesce(min(position), 0) FROM ({_rows(place, params, scan)}) r{n}"
            for n, place in enumerate(places)
        )
        found = yield Query(each, params)
        return [(int(count), int(lowest)) for count, lowest in found.rows]

    def position_before(self, moment: datetime) -> Steps[int]:
        """A position up to which all messages were added before a moment."""
        return max(0, (yield from self.position_at(_shifted(moment, -OUT_OF_STEP))) - 1)

    def position_after(self, moment: datetime) -> Steps[int]:
        """A position from which on all messages were added after a moment."""
        return (yield from self.position_at(_shifted(moment, OUT_OF_STEP))) + 2 * NEAR

    def position_at(self, moment: datetime) -> Steps[int]:
        """A position before which messages were added before a moment, by a search in the primary key.

        It is not exact: messages that are added at the same time do not get their positions in the order of their
        times. So look for a moment that is a little earlier or later, and compare the times of what is found.
        """
        found = yield Query(f"SELECT min(position), max(position) FROM {self.outbox}")
        [[low, high]] = found.rows
        if low is None:
            return 0
        low, high = int(low), int(high) + 1
        while high - low > NEAR:
            middle = (low + high) // 2
            row = yield Query(
                f"SELECT position, {self.dialect.readable('created_at')} FROM {self.outbox} "
                "WHERE position >= :middle ORDER BY position LIMIT 1",
                {"middle": middle},
            )
            added = self.dialect.read_moment(row.rows[0][1]) if row.rows else None
            if added is not None and added < moment:
                low = max(middle, int(row.rows[0][0]))
            else:
                high = middle
        return low


def _shifted(moment: datetime, by: timedelta) -> datetime:
    """A moment a little earlier or later; itself at the ends of the calendar."""
    try:
        return moment + by
    except OverflowError:
        return moment


def _rows(place: Place, params: dict[str, Any], scan: int, wanted: str = "") -> str:
    position = place.position
    within = {"before": f"AND {position} < :before ", "after": f"AND {position} > :after "}
    given = "".join(condition for name, condition in within.items() if name in params)
    return f"SELECT {position} AS position{wanted} FROM {place.rows}{given}ORDER BY {position} DESC LIMIT {scan}"
