"""What a PostgreSQL server spends: processor time of all its processes, and write-ahead log."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil
import psycopg

if TYPE_CHECKING:
    from tests.services.postgresql import PostgreSQL


class Spent(NamedTuple):
    """What was spent so far."""

    processor: float
    """Seconds."""
    wal: int
    """Bytes."""

    def since(self, before: Spent) -> Spent:
        """What was spent since then."""
        return Spent(self.processor - before.processor, self.wal - before.wal)


def processor_time(server: PostgreSQL) -> float:
    """Seconds of processor time that the server has taken so far, with sessions that have ended."""
    postmaster = psutil.Process(server.pid)
    ended = postmaster.cpu_times()
    seconds = ended.children_user + ended.children_system
    for process in [postmaster, *postmaster.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:2])
    return float(seconds)


def spent(server: PostgreSQL, url: str) -> Spent:
    """What the server has spent so far."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    return Spent(processor_time(server), found[0] if found else 0)
