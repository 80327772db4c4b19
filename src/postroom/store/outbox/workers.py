"""Workers: every relay updates its row now and then, and counts those of the others."""

from __future__ import annotations

import os
import socket

from postroom.rules.failures import cut
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

ALIVE_SECONDS = 7.0
"""A relay that has been silent this long counts as gone: three of the longest heartbeats, and a little."""
FORGOTTEN_SECONDS = 86_400.0


class Workers(Operations):
    """The rows of `relay_worker` for one queue."""

    def beat(
        self, worker: str, lanes: int, in_flight: int, broker_down: str = "", silent: float | None = None
    ) -> Steps[int]:
        """Record that this worker is alive, and why its broker is not; returns how many are alive, this one included.

        A worker counts as gone when it has been silent for this many seconds and holds no lane, and after
        `ALIVE_SECONDS` in any case.
        """
        silent = min(silent or ALIVE_SECONDS, ALIVE_SECONDS)
        return (yield from self.transaction(self._beat, worker, lanes, in_flight, cut(broker_down), silent))

    def leave(self, worker: str) -> Steps[None]:
        """Delete the worker's row, so that others take its share of the lanes."""
        yield Query(
            f"DELETE FROM {self.tables['worker']} WHERE worker = :worker AND queue = :queue",
            {"worker": worker, "queue": self.queue},
        )

    def served(self) -> Steps[set[str]]:
        """All queues that have a living worker."""
        found = yield Query(
            f"SELECT DISTINCT queue FROM {self.tables['worker']} WHERE seen_at > {self.dialect.later(':silent')}",
            {"silent": -ALIVE_SECONDS},
        )
        return {queue for [queue] in found.rows}

    def _beat(self, worker: str, lanes: int, in_flight: int, broker_down: str, silent: float) -> Steps[int]:
        table = self.tables["worker"]
        params = {"worker": worker, "lanes": lanes, "in_flight": in_flight, "down": broker_down, "queue": self.queue}
        process = {"host": socket.gethostname()[:255], "pid": os.getpid()}
        known = yield Query(f"SELECT pid FROM {table} WHERE worker = :worker AND queue = :queue", params)
        yield Query(
            f"UPDATE {table} SET seen_at = {self.now}, lanes = :lanes, in_flight = :in_flight, broker_down = :down "
            f"WHERE worker = :worker AND queue = :queue",
            params,
        )
        if not known.rows:
            yield Query(
                f"INSERT INTO {table} (worker, queue, host, pid, lanes, in_flight, broker_down) "
                f"VALUES (:worker, :queue, :host, :pid, :lanes, :in_flight, :down)",
                {**params, **process},
            )
            yield Query(
                f"DELETE FROM {table} WHERE seen_at < {self.dialect.later(':forgotten')}",
                {"forgotten": -FORGOTTEN_SECONDS},
            )
        elif known.rows[0][0] != process["pid"]:  # a process that died has been replaced under its name
            yield Query(
                f"UPDATE {table} SET host = :host, pid = :pid, started_at = {self.now} "
                f"WHERE worker = :worker AND queue = :queue",
                {**params, **process},
            )
        # Another relay's heartbeats may be further apart than ours: while it holds lanes, it has longer to beat.
        holding = (
            f"EXISTS (SELECT 1 FROM {self.lane} l WHERE l.queue = w.queue AND l.owner = w.worker "
            f"AND l.leased_until > {self.now})"
        )
        alive = yield Query(
            f"SELECT count(*) FROM {table} w WHERE queue = :queue AND (seen_at > {self.dialect.later(':silent')} "
            f"OR seen_at > {self.dialect.later(':gone')} AND {holding})",
            {"queue": self.queue, "silent": -silent, "gone": -ALIVE_SECONDS},
        )
        return int(alive.rows[0][0])
