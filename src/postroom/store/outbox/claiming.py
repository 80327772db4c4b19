"""Claiming: a lease for each message without a key, and what to do with those that must not be sent."""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from postroom.rules.failures import Reason
from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits, Stored, Transition, split_batch
from postroom.rules.ordering import NO_LANE, Order
from postroom.store.outbox.leases import Claim, Claimed, Dead, Expired, GivenBack, Settlement, new_token
from postroom.store.outbox.settling import Settling
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import DEFAULT_QUEUE, UNBOUNDED, fitting_in, is_unreadable
from postroom.store.sql.rows import Unreadable
from postroom.store.sql.states import becomes, comes_due, in_state, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroom.store.sql.names import Names


class Claiming(Settling):
    """Select for update, skipping what is locked, then update: one short transaction. PostgreSQL: one statement."""

    def __init__(
        self,
        names: Names,
        queue: str = DEFAULT_QUEUE,
        order: Order = Order.HOLD,
        limits: ClaimLimits = DEFAULT_CLAIM_LIMITS,
    ) -> None:
        super().__init__(names, queue)
        self.limits = limits
        self.order = order

    def claim(
        self,
        worker: str,
        limit: int,
        seconds: float,
        *,
        token: int | None = None,
        after: int = 0,
        due: bool = True,
        most_bytes: int = UNBOUNDED,
    ) -> Steps[Claim]:
        """Lease messages without a key, oldest first, skipping those that others hold.

        Committed when it returns. What is past its expiry, has no message or was claimed too often is settled here
        and not handed out. `after` starts the scan behind a position; `due` also looks at scheduled and failed ones;
        of each kind only the first is taken that makes more than `most_bytes` together.
        """
        token = token or new_token()
        lease = {
            "queue": self.queue,
            "worker": worker,
            "seconds": float(seconds),
            "token": token,
            "most_bytes": most_bytes,
        }
        rows: list[Row] = []
        if due:
            rows += yield from self._lease_due({**lease, "limit": limit})
        if len(rows) < limit:
            rows += yield from self._lease_ready({**lease, "limit": limit - len(rows), "after": after})
        rows.sort(key=itemgetter(0))
        claimed = [
            Claimed(row[0], row[1], token, row[2], row[3], message, row[4])
            for row, message in zip(rows, self.reader.messages(rows), strict=True)
        ]
        return (yield from self._sift(claimed, {row[0] for row in rows if row[5]}))

    def _sift(self, claimed: list[Claimed], expired: Collection[int]) -> Steps[Claim]:
        """Settle what must not be sent, give back what must not be sent now, return the rest."""
        most_claims = max(map(attrgetter("claims"), claimed), default=0)
        if not expired and most_claims <= self.limits.alone_after and not any(map(is_unreadable, claimed)):
            return Claim(claimed, [], len(claimed))
        settled: list[Settlement] = []
        sendable: list[Claimed] = []
        unsure: set[int] = set()
        for one in claimed:
            if isinstance(one.message, Unreadable):
                settled.append(
                    Dead(one, one.message.code, one.message.problem, attempted=False, transition=Transition.ORPHAN)
                )
                unsure.add(one.lane)
            elif one.ordered and one.lane in unsure:
                continue  # it may be of the same key, which may be gone: the next read will tell
            elif one.position in expired:
                settled.append(Expired(one))
            else:
                sendable.append(one)
        split = split_batch([one.claims for one in sendable], self.limits, [one.message.key for one in sendable])
        why = "claimed again and again and never settled: its worker may have died of it"
        settled += [
            Dead(sendable[index], Reason.LEASE_EXPIRED, why, attempted=False, transition=Transition.ABANDON)
            for index in split.dead
        ]
        # A lane's messages have no lease of their own to give back.
        given_back = [GivenBack(sendable[index]) for index in split.give_back if not sendable[index].ordered]
        lost = yield from self.settle([*settled, *given_back])
        gone = {one.lease for one in lost}
        messages = [sendable[index] for index in split.send]
        alone = any(one.claims > self.limits.alone_after for one in messages)
        done = {one.lease for one in messages} | {one.claimed.lease for one in settled}
        return Claim(
            messages,
            [one for one in settled if one.claimed.lease not in gone],
            len(claimed),
            alone=alone,
            kept_back=[one for one in claimed if one.ordered and one.lease not in done],
        )

    def _lease_ready(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        """Lease ready rows; each comes as position, lane, attempts, claims, size, expired and the message columns."""
        first = (
            f"SELECT state, lane, position, {self.size('d')} FROM {self.delivery} d "
            f"WHERE {ready()} AND queue = :queue AND lane = {NO_LANE} AND position > :after "
            f"AND leased_until <= {self.now} ORDER BY position LIMIT :limit{self.dialect.skip_locked}"
        )
        return (yield from self.transaction(self._lease, first, lease))

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (yield from self.transaction(self._lease, self._due_in([NO_LANE]), lease))

    def _due_in(self, lanes: Sequence[int]) -> str:
        """Lock what is due in these lanes, `:limit` of it, longest due first: state, lane, position and size."""
        return (
            f"SELECT state, lane, position, {self.size('d')} FROM {self.delivery} d WHERE {comes_due()} "
            f"AND queue = :queue AND lane IN ({whole_numbers(lanes)}) AND due <= {self.now} "
            f"AND leased_until <= {self.now} ORDER BY due, position LIMIT :limit{self.dialect.skip_locked}"
        )

    def _lease(self, which: str, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        found = yield Query(which, lease)
        states: dict[int, list[int]] = {}
        fitting = list(fitting_in(found.rows, 3, int(str(lease["most_bytes"]))))
        for state, _, position, _ in fitting:
            states.setdefault(state, []).append(position)
        for state, positions in states.items():
            yield Query(
                f"UPDATE {self.delivery} SET {becomes(Transition.CLAIM)}, token = :token, owner = :worker, "
                f"claims = claims + 1, leased_until = {self.dialect.later(':seconds')} "
                f"WHERE {in_state(Stored(state))} AND queue = :queue AND lane = {NO_LANE} "
                f"AND position IN ({whole_numbers(positions)})",
                lease,
            )
        return (yield from self._rows([position for _, _, position, _ in fitting]))

    def _rows(self, positions: Sequence[int]) -> Steps[Sequence[Row]]:
        if not positions:
            return []
        result = yield Query(
            f"SELECT d.position, d.lane, {self.tries()}, {self.size('d', 'm')}, "
            f"coalesce(m.expires_at <= {self.now}, 0), {self.columns} "
            f"FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position "
            f"WHERE {ready('d')} AND d.queue = :queue AND d.lane = {NO_LANE} "
            f"AND d.position IN ({whole_numbers(positions)})",
            {"queue": self.queue},
        )
        return result.rows
