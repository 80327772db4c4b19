"""What a check asks about messages in the stream. Each read is bounded."""

from __future__ import annotations

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE, TWOPHASE_QUEUE
from postroom.rules.routing import HANDLERS
from postroom.store.sql.dialect import ALL_LANES, text, whole_numbers
from postroom.store.sql.rows import uuid_of
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.states import ready, unsettled
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.slots import Slots

NEWEST = 5000
"""Messages that are looked at."""
MOST = 50
"""Of those without a receipt, whose deliveries are looked for."""
WITHIN = 1.0
"""Seconds within which a message was sent that was surely not scheduled."""
SLACK = 10.0
"""Seconds after the mode changed in which transactions may end that began before."""


_FOR_BROKERS = (
    f"AND queue <> '{TWOPHASE_QUEUE}' AND NOT starts_with(queue, '{SAGA_QUEUE}') "
    f"AND NOT starts_with(queue, '{HANDLERS}')"
)
"""Sagas, two-phase commits and what consumers have parked never go to the stream."""


class Streams(SkipScan):
    """Reads the newest messages, on PostgreSQL."""

    def open_ones(self) -> Steps[tuple[dict[int, str], int, int]]:
        """Positions and ids of the newest in the stream without receipt and delivery; at how many it looked; and where.

        That is a place in the write-ahead log: whoever has read up to it has read all of them.
        """
        newest = (
            f"SELECT position, id FROM (SELECT position, id, streamed FROM {self.outbox} ORDER BY position DESC "
            f"LIMIT {NEWEST}) m WHERE streamed"
        )
        looked_at = yield Query(f"SELECT count(*) FROM ({newest}) m")
        found = yield Query(
            f"SELECT m.position, m.id FROM ({newest}) m WHERE NOT EXISTS (SELECT 1 FROM {self.receipt} r "
            f"WHERE r.position = m.position) ORDER BY m.position DESC LIMIT {MOST}"
        )
        ids = {int(position): str(uuid_of(identifier)) for position, identifier in found.rows}
        place = yield from Slots(self.names).end_of_wal()
        return (yield from self.still_open(ids)), int(looked_at.rows[0][0]), place

    def still_open(self, ids: dict[int, str]) -> Steps[dict[int, str]]:
        """Those of them that have neither receipt nor delivery now."""
        left = dict(ids)
        if left:
            queues, params = yield from self._queues(*Stored)
            found = yield Query(
                f"SELECT position FROM {self.delivery} WHERE {unsettled()} AND queue IN ({queues}) "
                f"AND lane IN ({ALL_LANES}) AND position IN ({whole_numbers(sorted(left))})",
                params,
            )
            for [position] in found.rows:
                left.pop(int(position), None)
        if left:  # what was sent between these statements has its receipt by now
            found = yield Query(
                f"SELECT m.position FROM {self.outbox} m WHERE m.position IN ({whole_numbers(sorted(left))}) "
                f"AND NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = m.position)"
            )
            left = {int(position): left[int(position)] for [position] in found.rows}
        return left

    def past_the_stream(self, mode_seconds: float) -> Steps[tuple[list[str], int]]:
        """Topics of the newest messages with a key that producers gave a delivery; and at how many it looked.

        Since the mode changed, so many seconds ago. What was scheduled has a delivery by right: one that is sent tells
        no more whether it was, so only those count that were sent at once.
        """
        recent = (
            f"SELECT position, topic, queue, streamed, created_at FROM (SELECT position, topic, queue, ordering_key, "
            f"streamed, created_at FROM {self.outbox} ORDER BY position DESC LIMIT {NEWEST}) m "
            f"WHERE ordering_key IS NOT NULL AND created_at > {self.dialect.later(':since')} {_FOR_BROKERS}"
        )
        params = {"since": SLACK - mode_seconds}
        looked_at = yield Query(f"SELECT count(*) FROM ({recent}) m", params)
        sent = yield Query(
            f"SELECT m.topic FROM ({recent}) m JOIN {self.receipt} r ON r.position = m.position "
            f"WHERE NOT m.streamed AND r.sent_at < m.created_at + make_interval(secs => {WITHIN})",
            params,
        )
        some = yield Query(f"SELECT position, topic FROM ({recent}) m WHERE NOT streamed LIMIT {MOST}", params)
        topics = {int(position): text(topic) for position, topic in some.rows}
        queues, named = yield from self._queues(Stored.READY)
        waiting = yield Query(
            f"SELECT position FROM {self.delivery} WHERE {ready()} AND queue IN ({queues}) "
            f"AND lane IN ({ALL_LANES}) AND due = {self.dialect.never} "
            f"AND position IN ({whole_numbers(sorted(topics))})",
            named,
        )
        found = [text(topic) for [topic] in sent.rows] + [topics[int(position)] for [position] in waiting.rows]
        return found, int(looked_at.rows[0][0])

    def _queues(self, *states: Stored) -> Steps[tuple[str, dict[str, str]]]:
        """The queues with deliveries in these states, as parameters for SQL's IN: whether they have lanes or not."""
        found: dict[str, None] = {}
        for state in states:
            found |= dict.fromkeys((yield from self.queues_with(state)))
        params = {f"queue_{n}": queue for n, queue in enumerate(found)}
        return ", ".join(f":{name}" for name in params) or "NULL", params
