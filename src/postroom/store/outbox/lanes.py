"""Lanes: order by key. The holder of a lane's lease sends its messages in order, without a lease for each."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Transition
from postroom.rules.ordering import LANES
from postroom.rules.routing import is_routed
from postroom.store.outbox.leases import NO_AGES, UNKNOWN_AGES, Ages, Claim, Claimed, Cursors, Lane, new_token
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import UNBOUNDED, Operations, Place, chunks, fitting_in
from postroom.store.sql.states import becomes, before, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroom.store.outbox.held import HeldLeases
    from postroom.store.outbox.screening import Screening
    from postroom.store.outbox.selections import Selections

FREED = 0
"""Stands in place of a position, in a row that says that something was freed in a lane."""
MOST_PROMOTED = 1000
"""Millions of messages may come due together: more than one statement can write within a lane's lease."""


class Lanes:
    """Take lanes, read them, release them."""

    def __init__(self, sql: Operations, selections: Selections, held: HeldLeases, screening: Screening) -> None:
        self.sql = sql
        self.selections = selections
        self._held = held
        self._screening = screening

    def take(self, worker: str, seconds: float, limit: int = LANES, *, token: int | None = None) -> Steps[list[Lane]]:
        """Lease free lanes. Committed when it returns: only a later statement may read what is in them.

        Creates a queue's lanes at the first call; `init` has created those of the default queue.
        """
        sql = self.sql
        token = token or new_token()
        lease = {"queue": sql.queue, "worker": worker, "seconds": float(seconds), "token": token, "limit": limit}
        found = yield from self._take(lease)
        if not found and (yield from sql.make_lanes()):
            found = yield from self._take(lease)
        return [Lane(number, token, interrupted=previous != 0) for number, previous in sorted(map(tuple, found))]

    def rest(self) -> Steps[bool]:
        """Whether nobody may hold lanes now: messages that leave the stream must get into them first."""
        yield from ()
        return False

    def read(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        *,
        after: Cursors | Mapping[int, int] | None = None,
        in_flight: Collection[int] = (),
        most_bytes: int = UNBOUNDED,
        renew: bool = True,
        wait: bool = True,
    ) -> Steps[Claim]:
        """The next messages of held lanes, in order, at most `limit` of each lane; renews the leases.

        Without `renew` it leaves the lanes as they are, waits for nobody, and does not record how far it read; without
        `wait`, it does so with the lanes that somebody has locked.

        Leaves out what is in flight, and what stands behind a failed or, under `hold`, dead message of its key.
        `after` starts each lane's scan behind a position. If something before it may have been `freed`, the lane is not
        read: call `look_back`, and read from the beginning. A lane whose lease was lost returns nothing.
        Pass a lane as interrupted only at its first read: such a read counts as a claim of the messages it returns.
        """
        sql = self.sql
        if not lanes:
            return Claim([], [], 0)
        token_of = {lane.number: lane.token for lane in lanes}
        cursors = after if isinstance(after, Cursors) else Cursors(after or {})
        found = yield from self._read(lanes, limit, float(seconds), cursors, sorted(in_flight), most_bytes, renew, wait)
        freed = [row[1] for row in found if row[0] == FREED]
        rows = [row for row in found if row[0] != FREED] if freed else found
        suspicious = {lane.number for lane in lanes if lane.interrupted}
        claimed = [
            Claimed(row[0], row[1], token_of[row[1]], row[2], row[3] + (row[1] in suspicious), message, row[4])
            for row, message in zip(rows, sql.reader.messages(rows), strict=True)
        ]
        claimed.sort(key=attrgetter("position"))
        cut_short = len(rows) >= limit or sum([row[4] for row in rows]) >= most_bytes
        claim = yield from self._screening.screen(claimed, {row[0] for row in rows if row[5]})
        suspects = [one for one in claim.messages if one.lane in suspicious]
        if suspects:
            yield from sql.transaction(self._count_claims, suspects)
        return replace(claim, cut_short=cut_short, freed=freed) if cut_short or freed else claim

    def look_back(self, lanes: Sequence[Lane]) -> Steps[None]:
        """Record that lanes with something `freed` are being read from the beginning."""
        sql = self.sql
        if lanes:
            again = f"UPDATE {sql.lane} SET read_to = -1 - read_to WHERE queue = :queue AND read_to < 0"
            yield from sql.statement(f"{again} AND ({_these(lanes)})", {"queue": sql.queue})

    def ages(self) -> Steps[Ages]:
        """Which transactions may still commit messages at positions before those that were read.

        In a queue that messages are routed into, one may arrive at any position at any time.
        """
        sql = self.sql
        yield from ()
        if is_routed(sql.queue):
            return UNKNOWN_AGES
        return NO_AGES if sql.dialect.name == "sqlite" else UNKNOWN_AGES

    def promote(self, lanes: Sequence[Lane], *, wait: bool = True) -> Steps[dict[int, int]]:
        """Make what is due in these lanes ready; returns the lowest such position of each lane, to read from there.

        At most a thousand or so at a time: call it again as long as it returns any. Without `wait` it passes over lanes
        that somebody has locked.
        """
        if not lanes:
            return {}
        return (yield from self._promote(lanes, wait))

    def release(self, lanes: Sequence[Lane]) -> Steps[None]:
        """End the leases of lanes that are still held by their token."""
        sql = self.sql
        if lanes:
            yield from sql.statement(
                f"UPDATE {sql.lane} SET token = 0, owner = '', leased_until = {sql.dialect.never}, read_to = 0 "
                f"WHERE queue = :queue AND ({_these(lanes)})",
                {"queue": sql.queue},
            )

    def _count_claims(self, claimed: Sequence[Claimed]) -> Steps[None]:
        """Count the claim of messages in an interrupted lane, if the lane is still held."""
        sql = self.sql
        held = yield from self._held.of(claimed)
        mine = [one for one in claimed if one.lease in held]
        if mine:
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET claims = claims + 1 "
                f"WHERE {ready()} AND queue = :queue AND {sql.places(mine)}",
                {"queue": sql.queue},
            )

    def _take(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        """Lease free lanes; returns each with the token of its last holder, 0 if that one released it."""
        return (yield from self.sql.transaction(self._lease_lanes, lease))

    def _lease_lanes(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        sql = self.sql
        found = yield Query(
            f"SELECT lane, token FROM {sql.lane} WHERE queue = :queue AND leased_until <= {sql.now} "
            f"ORDER BY lane LIMIT :limit{sql.dialect.skip_locked}",
            lease,
        )
        if found.rows:
            yield Query(
                f"UPDATE {sql.lane} SET token = :token, owner = :worker, read_to = 0, "
                f"leased_until = {sql.dialect.later(':seconds')} "
                f"WHERE queue = :queue AND lane IN ({whole_numbers([lane for lane, _ in found.rows])})",
                lease,
            )
        return found.rows

    def _read(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        cursors: Cursors,
        in_flight: Sequence[int],
        most_bytes: int,
        renew: bool,  # noqa: FBT001 - as in `read`
        wait: bool,  # noqa: FBT001
    ) -> Steps[Sequence[Row]]:
        return (
            yield from self.sql.transaction(
                self._renew_and_read, lanes, limit, seconds, cursors.after, in_flight, most_bytes, renew, wait
            )
        )

    def _renew_and_read(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        after: Mapping[int, int],
        in_flight: Sequence[int],
        most_bytes: int,
        renew: bool,  # noqa: FBT001 - as in `read`
        wait: bool,  # noqa: FBT001
    ) -> Steps[Sequence[Row]]:
        sql = self.sql
        numbers = [lane.number for lane in lanes]
        locked = (yield from self._held.lanes(numbers, self._locking(wait))) if renew else {}
        live = locked
        if not (renew and wait):
            live = locked | (yield from self._held.lanes(sorted({*numbers} - {number for number, _ in locked}), ""))
        freed = {lane.number for lane in lanes if live.get(lane.lease, 0) < 0}
        told: list[Row] = [(FREED, number) for number in freed]
        held = [lane.number for lane in lanes if lane.lease in live]
        held = [number for number in held if number not in freed or not after.get(number)]
        if not held:
            return told
        found = yield from self._rows(held, after, in_flight, limit)
        rows = list(fitting_in(sorted(found, key=itemgetter(0)), 4, most_bytes))
        renewed = [number for number in held if number in {number for number, _ in locked}]
        if not renewed:
            return [*told, *rows]
        furthest = {row[1]: row[0] for row in rows if row[1] not in freed}
        further = "".join(f"WHEN lane = {lane} AND read_to < {to} THEN {to} " for lane, to in furthest.items())
        read_to = f"CASE {further}ELSE read_to END" if further else "read_to"
        yield Query(
            f"UPDATE {sql.lane} SET leased_until = {sql.dialect.later(':seconds')}, read_to = {read_to} "
            f"WHERE queue = :queue AND lane IN ({whole_numbers(renewed)})",
            {"queue": sql.queue, "seconds": seconds},
        )
        return [*told, *rows]

    def _locking(self, wait: bool) -> str:  # noqa: FBT001 - as in `read`
        return self.sql.dialect.for_update if wait else self.sql.dialect.skip_locked

    def _rows(
        self, lanes: Sequence[int], after: Mapping[int, int], in_flight: Sequence[int], limit: int
    ) -> Steps[list[Row]]:
        """The next rows of each lane, at most `limit`, without those in flight."""
        listed = f"SELECT position FROM {self.sql.dialect.listed_positions} AS these"
        select = self._lane_select(":lane", ":after", f"AND d.position NOT IN ({listed})" if in_flight else "")
        given = {"queue": self.sql.queue, "positions": f"[{whole_numbers(in_flight)}]", "limit": limit}
        rows: list[Row] = []
        for lane in lanes:
            rows += (yield Query(select, {**given, "lane": lane, "after": after.get(lane, 0)})).rows
        return rows

    def _lane_select(self, lane: str, after: str, busy: str) -> str:
        sql = self.sql
        return (
            f"SELECT d.position, d.lane, {sql.tries()}, {sql.size('d', 'm')}, "
            f"coalesce(m.expires_at <= {sql.now}, 0), {sql.columns} "
            f"FROM {sql.delivery} d LEFT JOIN {sql.outbox} m ON m.position = d.position "
            f"WHERE {ready('d')} AND d.queue = :queue AND d.lane = {lane} AND d.position > {after} {busy} "
            f"AND {self.selections.unblocked()}{self.selections.before_unrouted(lane)} "
            f"ORDER BY d.position LIMIT :limit"
        )

    def _promote(self, lanes: Sequence[Lane], wait: bool) -> Steps[dict[int, int]]:  # noqa: FBT001 - as in `promote`
        return (yield from self.sql.transaction(self._make_ready, lanes, wait))

    def _make_ready(self, lanes: Sequence[Lane], wait: bool) -> Steps[dict[int, int]]:  # noqa: FBT001 - as in `promote`
        sql = self.sql
        live = yield from self._held.lanes([lane.number for lane in lanes], self._locking(wait))
        held = [lane.number for lane in lanes if lane.lease in live]
        if not held:
            return {}
        found = yield Query(self.selections.due_in(held), {"queue": sql.queue, "limit": MOST_PROMOTED})
        due = [Place(row[1], row[2]) for row in found.rows]
        for some in chunks(due):
            # By position: what has come due since is not among the returned positions, and would be passed.
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.COME_DUE)} "
                f"WHERE {before(Transition.COME_DUE)} AND queue = :queue AND {sql.places(some)}",
                {"queue": sql.queue},
            )
        return {lane: min(one.position for one in due if one.lane == lane) for lane in {one.lane for one in due}}


def _these(lanes: Sequence[Lane]) -> str:
    """A condition that finds lanes by their leases, next to the queue."""
    return " OR ".join(f"(lane = {lane.number} AND token = {lane.token})" for lane in lanes)
