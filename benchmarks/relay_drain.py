"""One drain of a backlog by the relay, or by a floor, in a process of its own: what it took, as JSON.

``python -m benchmarks.relay_drain URL PID VARIANT MESSAGES``, where PID is the server's. See `benchmarks.relay`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg

from benchmarks.server_costs import processor_time
from postroom.bench.drains import drain
from postroom.bench.floors import Floor
from postroom.bench.scratch import Scratch, scratch
from postroom.brokers.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOORS = {"lean": False, "full": True}
KEYS = {"rows": None, "keys": 10_000, "hot": 1, "hot-ordered": 1}
HELD = {
    "snapshot": "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1",
    "writer": "BEGIN; SELECT pg_current_xact_id()",
}


@contextmanager
def held_open(url: str, what: str) -> Iterator[None]:
    """Another session that has begun a transaction, and does not end it."""
    with psycopg.connect(url, autocommit=True) as connection:
        if what:
            connection.execute(HELD[what])
        yield
        connection.execute("ROLLBACK")


def main(url: str, pid: int, variant: str, messages: int) -> None:
    """Fill, drain, and print the rate and the processor time for a message, in microseconds."""
    kind, _, held = variant.partition("+")
    server = SimpleNamespace(pid=pid)
    with scratch(url) as place, asyncio.Runner() as runner, ExitStack() as stack:
        place.fill(1000, KEYS.get(kind))
        runner.run(drained(place, 1000, "rows"))  # imports take longer than a few thousand messages
        place.fill(0)
        stack.enter_context(held_open(url, held))
        place.fill(messages, KEYS.get(kind))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        gc.collect()
        gc.freeze()  # as `postroom relay` does
        before, python = processor_time(server), time.process_time()  # type: ignore[arg-type]
        work = Floor(place, full=FLOORS[kind]).drain() if kind in FLOORS else drained(place, messages, kind)
        rate = runner.run(work)
        python = time.process_time() - python
        time.sleep(0.3)  # what sessions have taken counts when the server knows that they have ended
        spent = processor_time(server) - before  # type: ignore[arg-type]
    print(json.dumps({"rate": rate, "python": python / messages * 1e6, "server": spent / messages * 1e6}))


async def drained(place: Scratch, messages: int, kind: str) -> float:
    """Drain with a whole relay."""
    if kind != "hot-ordered":
        return await drain(place, messages)
    return await drain(place, messages, MemoryBroker())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
