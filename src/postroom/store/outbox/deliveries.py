"""Deliveries: the whole lease protocol of one queue, on databases without statements of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from postroom.rules.ordering import NO_LANE, key_hash
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.leases import Claimed, Duplicate, GivenBack, Lane, Lease, Renewal, SortedOut
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.states import comes_due, ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Deliveries(Lanes):
    """Claims, lanes and settlements, and what keeps them: renewal, and the way out of an unknown outcome."""

    def renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float | None = None
    ) -> Steps[Renewal]:
        """Extend leases of messages without a key and of lanes; tells which were extended and which are lost.

        A row that somebody works on is passed over, so that it cannot block the heartbeat: it is neither. What this
        worker settled itself in the meantime is told as lost: the caller knows.
        """
        renewed, renewed_lanes = yield from self._renew(claimed, lanes, float(seconds), float(lane_seconds or seconds))
        missing = [one for one in claimed if one.lease not in renewed]
        missing_lanes = [lane for lane in lanes if lane.lease not in renewed_lanes]
        still = yield from self._leased(missing)
        still_lanes = yield from self._leased_lanes(missing_lanes)
        return Renewal(
            renewed,
            renewed_lanes,
            [one for one in missing if one.lease not in still],
            [lane for lane in missing_lanes if lane.lease not in still_lanes],
        )

    def anything_to_send(self) -> Steps[bool]:
        """Whether anything is left that is due and free, or in a lane and not held back, whoever has the lane."""
        free = f"leased_until <= {self.now}"
        for question in (
            f"{ready()} AND lane = {NO_LANE} AND {free}",
            f"{comes_due()} AND due <= {self.now}",
            f"{ready()} AND lane > {NO_LANE} AND {self._unblocked()}",
        ):
            found = yield Query(
                f"SELECT 1 FROM {self.delivery} d WHERE queue = :queue AND {question} LIMIT 1", {"queue": self.queue}
            )
            if found.rows:
                return True
        return False

    def strangers(self, claimed: Sequence[Claimed]) -> Steps[list[Claimed]]:
        """Those in whose place the database has another message, or none."""
        ids: dict[int, str] = {}
        for some in chunks(claimed):
            positions = whole_numbers([one.position for one in some])
            found = yield Query(f"SELECT position, id FROM {self.outbox} WHERE position IN ({positions})")
            ids.update({position: str(identifier) for position, identifier in found.rows})
        return [one for one in claimed if not is_id(ids.get(one.position), one.message.id)]

    def forget(self, token: int) -> Steps[None]:
        """End every lease of a claim whose outcome is unknown, because the connection was lost as it committed."""
        params = {"queue": self.queue, "token": token, "no_lane": NO_LANE}
        released = f"token = 0, owner = '', leased_until = {self.dialect.never}"
        yield from self.statement(
            f"UPDATE {self.delivery} SET {released}, claims = claims - 1 "
            f"WHERE {ready()} AND queue = :queue AND lane = :no_lane AND token = :token",
            params,
        )
        yield from self.statement(
            f"UPDATE {self.lane} SET {released}, read_to = 0 WHERE queue = :queue AND token = :token", params
        )

    def deduplicate(
        self, claimed: Sequence[Claimed], in_flight: Collection[tuple[str, str | None]] = ()
    ) -> Steps[SortedOut]:
        """Settle what was sent before, by topic and digest, and sort out the rest.

        Best effort: two that are in flight in two workers at the same time are both sent. Of twins in one batch the
        first is sent, the others, and those whose twin is `in_flight`, are given back and will find its receipt; with
        a key, so is what stands behind them on it. Counts what was sent since deduplication is switched on.
        """
        answers = yield from self._answers([content_hash(one) for one in claimed])
        send: list[Claimed] = []
        duplicates: list[Duplicate] = []
        later: list[Claimed] = []
        held_keys: set[str | None] = set()
        seen = set(in_flight)
        for one in claimed:
            message = one.message
            content = (message.topic, message.digest)
            if one.ordered and message.key in held_keys:
                later.append(one)
            elif message.digest is not None and content in answers:
                duplicates.append(Duplicate(one, answers[content]))
            elif message.digest is not None and content in seen:
                later.append(one)
                held_keys.add(message.key)
            else:
                send.append(one)
                seen.add(content)
        # A lane's messages have no lease of their own to give back.
        lost = yield from self.settle([*duplicates, *(GivenBack(one) for one in later if not one.ordered)])
        gone = {one.lease for one in lost}
        return SortedOut(
            send,
            [one for one in duplicates if one.claimed.lease not in gone],
            [one for one in later if one.lease not in gone],
            lost,
        )

    def _answers(self, hashes: Collection[int]) -> Steps[dict[tuple[str, str | None], str | None]]:
        """What the broker answered to content that was sent. The hash finds it, topic and digest decide."""
        if not hashes:
            return {}
        found = yield Query(
            f"SELECT m.topic, m.digest, r.answer FROM {self.receipt} r JOIN {self.outbox} m ON m.position = r.position "
            f"WHERE r.dedup IN ({whole_numbers(sorted(set(hashes)))}) AND r.outcome = 'sent' ORDER BY r.position DESC"
        )
        return {(topic, digest): answer for topic, digest, answer in found.rows}

    def _renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        """Extend what can be extended without waiting; returns those leases, of messages and of lanes."""
        return (yield from self.transaction(self._extend, claimed, lanes, seconds, lane_seconds))

    def _extend(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        params = {"queue": self.queue, "seconds": seconds, "lane_seconds": lane_seconds}
        until = self.dialect.later(":seconds")
        held = yield from self._leased(claimed, self.dialect.skip_locked)
        if held:
            mine = [one for one in claimed if one.lease in held]
            yield Query(
                f"UPDATE {self.delivery} SET leased_until = {until} "
                f"WHERE {ready()} AND queue = :queue AND {self.places(mine)}",
                params,
            )
        held_lanes = yield from self._leased_lanes(lanes, self.dialect.skip_locked)
        if held_lanes:
            numbers = whole_numbers(sorted(number for number, _ in held_lanes))
            yield Query(
                f"UPDATE {self.lane} SET leased_until = {self.dialect.later(':lane_seconds')} "
                f"WHERE queue = :queue AND lane IN ({numbers})",
                params,
            )
        return held, held_lanes

    def _leased(self, claimed: Sequence[Claimed], locking: str = "") -> Steps[set[Lease]]:
        """Which leases on messages hold."""
        if not claimed:
            return set()
        found = yield Query(
            f"SELECT position, token FROM {self.delivery} WHERE {ready()} AND queue = :queue "
            f"AND {self.places(claimed)} AND leased_until > {self.now}{locking}",
            {"queue": self.queue},
        )
        return {one.lease for one in claimed} & {(position, token) for position, token in found.rows}

    def _leased_lanes(self, lanes: Sequence[Lane], locking: str = "") -> Steps[set[Lease]]:
        """Which leases on lanes hold."""
        if not lanes:
            return set()
        found = yield Query(
            f"SELECT lane, token FROM {self.lane} WHERE queue = :queue "
            f"AND lane IN ({whole_numbers([lane.number for lane in lanes])}) AND leased_until > {self.now}{locking}",
            {"queue": self.queue},
        )
        return {lane.lease for lane in lanes} & {(number, token) for number, token in found.rows}


def is_id(stored: str | None, identifier: UUID) -> bool:
    """Whether this is how a database keeps the id: a producer in plain SQL may have written it in its own way."""
    try:
        return stored is not None and UUID(stored) == identifier
    except ValueError:
        return False


def content_hash(claimed: Claimed) -> int:
    """What a receipt is found by when the same content goes to the same topic again."""
    return key_hash(f"{claimed.message.topic}\0{claimed.message.digest}")
