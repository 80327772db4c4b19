"""Write and read the counters of what went through, by the minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.sql.dialect import text
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.rules.flow import FlowCounts

MINUTE_MS = 60_000


class Flow(Operations):
    """The table `flow`. Each process writes rows of its own, so none waits for another."""

    def write(self, counts: FlowCounts, run: int) -> Steps[None]:
        """Write what has changed. If it raises, it may have been written: the next call writes it again."""
        if not counts.has_unwritten:
            return
        minute = yield from self.minute()
        counters = counts.to_write(minute)
        for some in chunks(list(counters.items())):
            params: dict[str, object] = {"run": run}
            for n, (place, messages) in enumerate(some):
                params |= {f"queue_{n}": place.queue, f"kind_{n}": place.kind, f"messages_{n}": messages}
            rows = ", ".join(
                f"({place.minute}, :queue_{n}, :kind_{n}, :run, :messages_{n})" for n, (place, _) in enumerate(some)
            )
            yield Query(
                f"INSERT INTO {self.tables['flow']} (minute, queue, kind, run, messages) VALUES {rows} "
                f"{self.dialect.replace('minute, queue, kind, run', 'messages')}",
                params,
            )
        counts.written(counters, minute)

    def minute(self) -> Steps[int]:
        """The current minute since 1970, by the database's clock."""
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        return int(found.rows[0][0]) // MINUTE_MS

    def by_minute(self, first: int, width: int, queue: str | None) -> Steps[list[tuple[int, str, int]]]:
        """What went through since this minute, by kind, added up over processes and in buckets of so many minutes."""
        bucket = f"minute - {self.dialect.remainder('minute', int(width))}"
        of_queue = "" if queue is None else "AND queue = :queue "
        found = yield Query(
            f"SELECT {bucket}, kind, sum(messages) FROM {self.tables['flow']} WHERE minute >= :first {of_queue}"
            f"GROUP BY {bucket}, kind",
            {"first": first} | ({} if queue is None else {"queue": queue}),
        )
        return [(int(minute), text(kind), int(messages)) for minute, kind, messages in found.rows]

    def queues_since(self, first: int) -> Steps[list[str]]:
        """The queues that something went through since this minute, by name."""
        found = yield Query(
            f"SELECT DISTINCT queue FROM {self.tables['flow']} WHERE minute >= :first ORDER BY queue", {"first": first}
        )
        return [text(queue) for [queue] in found.rows]
