"""What a statement is given: claimed deliveries and lanes, as arrays that it turns into tables."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.store.sql.states import ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.store.outbox.leases import Claimed, Lease
    from postroom.store.sql.operations import Operations

IS_GIVEN = "d.state = given.state AND d.queue = given.queue AND d.lane = given.lane AND d.position = given.position"
"""Delivery `d` is one of those of `given_deliveries`."""


def given_deliveries(**extra: str) -> str:
    """What is claimed, as a table.

    State and queue are columns of it and not constants, and it is materialised, so that the planner cannot take
    all ready deliveries first and look for each among the given ones.
    """
    types = {"position": "bigint", "lane": "smallint", "token": "bigint", **extra}
    arrays = ", ".join(f":{name}::text::{kind}[]" for name, kind in types.items())
    return f"""given AS MATERIALIZED (
        SELECT {int(Stored.READY)}::smallint AS state, :queue::text COLLATE "C" AS queue, given.*
        FROM unnest({arrays}) AS given ({", ".join(types)})
    )"""


def found_deliveries(sql: Operations, condition: str, lock: str = "") -> str:
    """Those of the given deliveries that are there and meet the condition, with their places.

    Each is looked up by itself: however the planner is mistaken about the size of the table, it cannot go through all
    deliveries and look for each among the given ones.
    """
    return f"""
        SELECT given.*, d.* FROM given CROSS JOIN LATERAL (
            SELECT d.ctid AS place FROM {sql.delivery} d WHERE {IS_GIVEN} AND {condition} OFFSET 0{lock}
        ) d"""


IS_FOUND = """d.ctid = found.place
    AND d.state IS NOT DISTINCT FROM found.state AND d.queue IS NOT DISTINCT FROM found.queue"""
"""Delivery `d` is one of those of `found_deliveries`, and has not moved since. Without an equality that an index knows,
there is only one way to it: by its place."""


LEASES = """leases AS MATERIALIZED (
        SELECT lane, token, positions::bigint[] AS positions
        FROM unnest(:lane::text::smallint[], :token::text::bigint[], :positions::text::text[])
            AS given (lane, token, positions)
    )"""
"""What is claimed, as a table with one row for each lease: few, for many deliveries."""


def places_of_leases(sql: Operations) -> str:
    """Where the deliveries of `LEASES` are that are still held, by their own lease or by their lane's.

    The index is searched once for each lease. As with `found_deliveries`, the planner cannot go the other way around.
    """
    return f"""
        SELECT d.place FROM leases CROSS JOIN LATERAL (
            SELECT d.ctid AS place FROM {sql.delivery} d
            WHERE {ready("d")} AND d.queue = :queue AND d.lane = leases.lane AND d.position = ANY (leases.positions)
              AND CASE WHEN d.lane = {NO_LANE} THEN d.token = leases.token AND d.leased_until > {sql.now}
                  ELSE (leases.lane, leases.token) IN (SELECT held.lane, held.token FROM held) END
            OFFSET 0
        ) d"""


def leases_given(claimed: Sequence[Claimed]) -> dict[str, str]:
    """The parameters of `LEASES`, and of `held_lanes` for those that are of lanes."""
    positions: defaultdict[Lease, list[int]] = defaultdict(list)
    for one in claimed:
        positions[one.lane, one.token].append(one.position)
    leases = sorted(positions)
    return {
        "lane": numbers([lane for lane, _ in leases]),
        "token": numbers([token for _, token in leases]),
        "positions": texts(numbers(sorted(positions[lease])) for lease in leases),
        **lanes_given([lease for lease in leases if lease[0] != NO_LANE]),
    }


def held_lanes(sql: Operations) -> str:
    """Those of the given lanes whose lease holds by its token, locked in their order."""
    return f"""
        SELECT l.lane, l.token FROM {sql.lane} l
        JOIN unnest(:lanes::text::smallint[], :lane_tokens::text::bigint[]) AS wanted (lane, token)
            ON l.lane = wanted.lane AND l.token = wanted.token
        WHERE l.queue = :queue AND l.leased_until > {sql.now}
        ORDER BY l.lane FOR NO KEY UPDATE OF l"""


def deliveries_given(claimed: Sequence[Claimed]) -> dict[str, str]:
    """The parameters of `given_deliveries`."""
    return {
        "position": numbers([one.position for one in claimed]),
        "lane": numbers([one.lane for one in claimed]),
        "token": numbers([one.token for one in claimed]),
    }


def lanes_given(leases: Sequence[Lease]) -> dict[str, str]:
    """The parameters of `held_lanes`."""
    return {"lanes": numbers([lane for lane, _ in leases]), "lane_tokens": numbers([token for _, token in leases])}


# Arrays travel as PostgreSQL writes them: of a list drivers look at every value, which took a third of the time.


def numbers(values: Sequence[float]) -> str:
    """An array of numbers."""
    return f"{{{','.join(map(str, values))}}}"


def texts(values: Iterable[object]) -> str:
    """An array of texts."""
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(value: object) -> str:
    if value is None:
        return "NULL"
    escaped = str(value).replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'
