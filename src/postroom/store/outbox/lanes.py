"""Lanes: order by key. Who holds a lane's lease sends its messages, in order; no lease is written for each message."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored, Transition, holding_states
from postroom.rules.ordering import LANES, Order
from postroom.rules.routing import is_sorted
from postroom.store.outbox.claiming import Claiming
from postroom.store.outbox.leases import NO_AGES, UNKNOWN_AGES, Ages, Claim, Claimed, Lane, new_token
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import DEFAULT_QUEUE, UNBOUNDED, Place, chunks, fitting_in
from postroom.store.sql.states import becomes, before, holds_key, in_state, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

FREED = 0
"""In place of a position, in a row that says that something has become free in a lane."""
MOST_PROMOTED = 1000
"""Messages that come due together may be millions: more than one statement can write within a lane's lease."""


class Lanes(Claiming):
    """Take lanes, read them, release them."""

    def take_lanes(
        self, worker: str, seconds: float, limit: int = LANES, *, token: int | None = None
    ) -> Steps[list[Lane]]:
        """Lease free lanes. Committed when it returns: only a later statement may read what is in them.

        A queue's lanes are made when they are first asked for; `init` has made those of the default queue.
        """
        token = token or new_token()
        lease = {"queue": self.queue, "worker": worker, "seconds": float(seconds), "token": token, "limit": limit}
        found = yield from self._take_lanes(lease)
        if not found and (yield from self.make_lanes()):
            found = yield from self._take_lanes(lease)
        return [Lane(number, token, interrupted=previous != 0) for number, previous in sorted(map(tuple, found))]

    def read_lanes(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        *,
        after: Mapping[int, int] | None = None,
        in_flight: Collection[int] = (),
        most_bytes: int = UNBOUNDED,
        renew: bool = True,
    ) -> Steps[Claim]:
        """The next messages of lanes that are held, in order, at most `limit` of each lane; renews their leases.

        Without `renew` the lanes stay as they are, and the read waits for nobody; nor is it noted how far it came.

        Left out is what a failed or, under `hold`, dead message of its key stands before, and what is in flight.
        `after` starts each lane's scan behind a position, unless something was `freed` in it that may lie before that:
        `look_back` then, and read it from the beginning. Lanes whose lease was lost give nothing.
        Hand a lane in as interrupted only at its first read: each such read counts as a claim of the messages it gives.
        """
        if not lanes:
            return Claim([], [], 0)
        token_of = {lane.number: lane.token for lane in lanes}
        found = yield from self._read_lanes(
            lanes, limit, float(seconds), after or {}, sorted(in_flight), most_bytes, renew
        )
        freed = [row[1] for row in found if row[0] == FREED]
        rows = [row for row in found if row[0] != FREED] if freed else found
        suspicious = {lane.number for lane in lanes if lane.interrupted}
        claimed = [
            Claimed(row[0], row[1], token_of[row[1]], row[2], row[3] + (row[1] in suspicious), message, row[4])
            for row, message in zip(rows, self.reader.messages(rows), strict=True)
        ]
        claimed.sort(key=attrgetter("position"))
        cut_short = len(rows) >= limit or sum([row[4] for row in rows]) >= most_bytes
        claim = yield from self._sift(claimed, {row[0] for row in rows if row[5]})
        suspects = [one for one in claim.messages if one.lane in suspicious]
        if suspects:
            yield from self.transaction(self._count_claims, suspects)
        return replace(claim, cut_short=cut_short, freed=freed) if cut_short or freed else claim

    def look_back(self, lanes: Sequence[Lane]) -> Steps[None]:
        """Say that lanes with something `freed` are read from the beginning from now on."""
        if lanes:
            again = f"UPDATE {self.lane} SET read_to = -1 - read_to WHERE queue = :queue AND read_to < 0"
            yield from self.statement(f"{again} AND ({_these(lanes)})", {"queue": self.queue})

    def ages(self) -> Steps[Ages]:
        """Which transactions may still commit messages at positions that lie before others which were read.

        Into a queue that messages are sorted into, one may come at any position and at any time.
        """
        yield from ()
        if is_sorted(self.queue):
            return UNKNOWN_AGES
        return NO_AGES if self.dialect.name == "sqlite" else UNKNOWN_AGES

    def promote(self, lanes: Sequence[Lane]) -> Steps[dict[int, int]]:
        """Make what is due in these lanes ready; returns the lowest such position of each lane, to read from there.

        A thousand or so at a time: call it again as long as it returns any.
        """
        if not lanes:
            return {}
        return (yield from self._promote(lanes))

    def release(self, lanes: Sequence[Lane]) -> Steps[None]:
        """End the leases of lanes, where nobody else has them."""
        if lanes:
            yield from self.statement(
                f"UPDATE {self.lane} SET token = 0, owner = '', leased_until = {self.dialect.never}, read_to = 0 "
                f"WHERE queue = :queue AND ({_these(lanes)})",
                {"queue": self.queue},
            )

    def _count_claims(self, claimed: Sequence[Claimed]) -> Steps[None]:
        """Count the claim of messages in a lane that was interrupted, where the lane is still held."""
        held = yield from self._held(claimed)
        mine = [one for one in claimed if one.lease in held]
        if mine:
            yield Query(
                f"UPDATE {self.delivery} SET claims = claims + 1 "
                f"WHERE {ready()} AND queue = :queue AND {self.places(mine)}",
                {"queue": self.queue},
            )

    def _take_lanes(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        """Lease free lanes; each comes with the token of its last holder, 0 if that one released it."""
        return (yield from self.transaction(self._lease_lanes, lease))

    def _lease_lanes(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        found = yield Query(
            f"SELECT lane, token FROM {self.lane} WHERE queue = :queue AND leased_until <= {self.now} "
            f"ORDER BY lane LIMIT :limit{self.dialect.skip_locked}",
            lease,
        )
        if found.rows:
            yield Query(
                f"UPDATE {self.lane} SET token = :token, owner = :worker, read_to = 0, "
                f"leased_until = {self.dialect.later(':seconds')} "
                f"WHERE queue = :queue AND lane IN ({whole_numbers([lane for lane, _ in found.rows])})",
                lease,
            )
        return found.rows

    def _read_lanes(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        after: Mapping[int, int],
        in_flight: Sequence[int],
        most_bytes: int,
        renew: bool,  # noqa: FBT001 - as in `read_lanes`
    ) -> Steps[Sequence[Row]]:
        return (
            yield from self.transaction(
                self._renew_and_read, lanes, limit, seconds, after, in_flight, most_bytes, renew
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
        renew: bool,  # noqa: FBT001 - as in `read_lanes`
    ) -> Steps[Sequence[Row]]:
        live = yield from self._live_lanes([lane.number for lane in lanes], lock=renew)
        freed = {lane.number for lane in lanes if live.get(lane.lease, 0) < 0}
        told: list[Row] = [(FREED, number) for number in freed]
        held = [lane.number for lane in lanes if lane.lease in live]
        held = [number for number in held if number not in freed or not after.get(number)]
        if not held:
            return told
        busy = f"AND d.position NOT IN ({whole_numbers(in_flight)})" if in_flight else ""
        each = " UNION ALL ".join(
            f"SELECT * FROM ({self._lane_select(lane, after.get(lane, 0), busy)}) lane_{lane}" for lane in held
        )
        found = yield Query(each, {"queue": self.queue, "limit": limit})
        rows = list(fitting_in(sorted(found.rows, key=itemgetter(0)), 4, most_bytes))
        if not renew:
            return [*told, *rows]
        furthest = {row[1]: row[0] for row in rows if row[1] not in freed}
        further = "".join(f"WHEN lane = {lane} AND read_to < {to} THEN {to} " for lane, to in furthest.items())
        read_to = f"CASE {further}ELSE read_to END" if further else "read_to"
        yield Query(
            f"UPDATE {self.lane} SET leased_until = {self.dialect.later(':seconds')}, read_to = {read_to} "
            f"WHERE queue = :queue AND lane IN ({whole_numbers(held)})",
            {"queue": self.queue, "seconds": seconds},
        )
        return [*told, *rows]

    def _lane_select(self, lane: int, after: int, busy: str) -> str:
        return (
            f"SELECT d.position, d.lane, {self.tries()}, {self.size('d', 'm')}, "
            f"coalesce(m.expires_at <= {self.now}, 0), {self.columns} "
            f"FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position "
            f"WHERE {ready('d')} AND d.queue = :queue AND d.lane = {lane} AND d.position > {after} {busy} "
            f"AND {self._unblocked()}{self._before_unsorted(str(lane))} ORDER BY d.position LIMIT :limit"
        )

    def _before_unsorted(self, lane: str) -> str:
        """Of a queue that messages are sorted into: nothing unsorted stands before it in its lane.

        That may be of the same key, and for the same broker. Its turn comes soon: to be sorted it needs no broker.
        """
        if not is_sorted(self.queue):
            return ""
        lowest = (
            f"coalesce((SELECT u.position FROM {self.delivery} u WHERE {in_state(state, 'u')} "
            f"AND u.queue = '{DEFAULT_QUEUE}' AND u.lane = {lane} ORDER BY u.position LIMIT 1), {UNBOUNDED})"
            for state in (Stored.READY, *holding_states(Order.HOLD))
        )
        return "".join(f" AND d.position < {position}" for position in lowest)

    def _unblocked(self) -> str:
        """Nothing that failed, or is dead and holds, stands before it on its key."""
        return (
            f"NOT EXISTS (SELECT 1 FROM {self.delivery} b WHERE b.queue = :queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND {holds_key(self.order, 'b')})"
        )

    def _promote(self, lanes: Sequence[Lane]) -> Steps[dict[int, int]]:
        return (yield from self.transaction(self._make_ready, lanes))

    def _make_ready(self, lanes: Sequence[Lane]) -> Steps[dict[int, int]]:
        live = yield from self._live_lanes([lane.number for lane in lanes])
        held = [lane.number for lane in lanes if lane.lease in live]
        if not held:
            return {}
        found = yield Query(self._due_in(held), {"queue": self.queue, "limit": MOST_PROMOTED})
        due = [Place(lane, position) for _, lane, position, _ in found.rows]
        for some in chunks(due):
            # By their positions: what has come due since was not returned, and would be passed by.
            yield Query(
                f"UPDATE {self.delivery} SET {becomes(Transition.COME_DUE)} "
                f"WHERE {before(Transition.COME_DUE)} AND queue = :queue AND {self.places(some)}",
                {"queue": self.queue},
            )
        return {lane: min(one.position for one in due if one.lane == lane) for lane in {one.lane for one in due}}


def _these(lanes: Sequence[Lane]) -> str:
    """A condition that finds lanes by their leases, beside the queue."""
    return " OR ".join(f"(lane = {lane.number} AND token = {lane.token})" for lane in lanes)
