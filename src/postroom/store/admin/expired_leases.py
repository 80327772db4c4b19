"""Release expired leases: remove the names of their workers. Others can claim such leases anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import is_saga_queue
from postroom.rules.ordering import NO_LANE
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import CHUNK
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.admin.selection import Progress


@dataclass(frozen=True, slots=True)
class Released:
    """How many expired leases were released: on messages without a key, and on lanes."""

    messages: int
    lanes: int


class ExpiredLeases(SkipScan):
    """Expired leases of all queues."""

    def release(self, progress: Progress | None = None) -> Steps[Released]:
        """Release them, in small batches. Active leases stay, and so do counts of claims.

        Those of sagas stay too: late work that nobody has taken over still counts there.
        """
        messages = 0
        for queue in (yield from self.queues_with(Stored.READY)):
            if is_saga_queue(queue):
                continue
            after: int | None = 0
            while after is not None:
                positions = yield from self.transaction(self._release_messages, queue, after)
                messages += len(positions)
                if progress:
                    progress(len(positions))
                after = positions[-1] if len(positions) == CHUNK else None
        lanes = yield from self.transaction(self._release_lanes)
        return Released(messages, lanes)

    def _release_messages(self, queue: str, after: int) -> Steps[list[int]]:
        of_queue = f"{ready()} AND queue = :queue AND lane = {NO_LANE}"
        found = yield Query(
            f"SELECT position FROM {self.delivery} WHERE {of_queue} AND position > :after AND owner <> '' "
            f"AND leased_until <= {self.now} ORDER BY position LIMIT {CHUNK}{self.dialect.skip_locked}",
            {"queue": queue, "after": after},
        )
        positions = [position for [position] in found.rows]
        if positions:
            yield Query(
                f"UPDATE {self.delivery} SET token = 0, owner = '', leased_until = {self.dialect.never} "
                f"WHERE {of_queue} AND position IN ({whole_numbers(positions)})",
                {"queue": queue},
            )
        return positions

    def _release_lanes(self) -> Steps[int]:
        """The token stays: it tells the next holder that the last one was interrupted, perhaps by a message."""
        ended = f"owner <> '' AND leased_until <= {self.now}"
        found = yield Query(f"SELECT queue, lane FROM {self.lane} WHERE {ended}{self.dialect.skip_locked}")
        for queue, lane in found.rows:
            yield Query(
                f"UPDATE {self.lane} SET owner = '', leased_until = {self.dialect.never}, read_to = 0 "
                f"WHERE queue = :queue AND lane = :lane",
                {"queue": queue, "lane": lane},
            )
        return len(found.rows)
