"""What the relay takes to send a message to a broker that does nothing, beside bare loops; on PostgreSQL with fsync.

``python -m benchmarks drain [--messages N] [--rounds N]``. All variants take turns in every round: without keys, with
10,000 and with one; also while another session holds a snapshot, or an open transaction that has written.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks.costs import HELD, Costs, ground, holding
from benchmarks.server_costs import spent
from postroom.bench.floors import Floor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.costs import Ground

ORDERED = "one hot key, a function that keeps order"
KEYS = {"no key": None, "10,000 keys": 10_000, "one hot key": 1, ORDERED: 1}


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks drain")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    costs = Costs()
    with ground() as place:
        for _ in range(options.rounds):
            for full in (False, True):
                _floor(place, costs, options.messages, full=full)
            for name, keys in KEYS.items():
                for what in HELD if keys != 1 else ("",):
                    place.place.fill(0)
                    with holding(place.place.url, what):
                        place.place.fill_more(options.messages, keys)
                        found = place.drain(options.messages, keeps_order=name == ORDERED)
                    costs.note(f"{name}{', ' + what if what else ''}", **found._asdict())
    costs.show()


def _floor(place: Ground, costs: Costs, messages: int, *, full: bool) -> None:
    place.place.fill(messages)
    before, processor = spent(place.server, place.place.url), time.process_time()
    rate = asyncio.run(Floor(place.place, full=full).drain())
    own, cost = time.process_time() - processor, spent(place.server, place.place.url).since(before)
    costs.note(
        "full floor" if full else "lean floor",
        per_second=rate,
        python_us=own / messages * 1e6,
        server_us=cost.processor / messages * 1e6,
        wal_bytes=cost.wal / messages,
    )
