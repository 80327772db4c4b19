"""Side-by-side measurement: variants run in turn for several rounds in one process, and their medians are compared."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 5
RESULTS = "POSTROOM_BENCHMARK_RESULTS"
"""The environment variable that names a file for figures (see `benchmarks.compare`)."""


def per_second(
    variants: Mapping[str, Callable[[], int]], prepare: Callable[[str], object] = str, rounds: int = ROUNDS
) -> dict[str, float]:
    """Run every variant once per round; each returns how many things it did. Returns the median rate of each.

    `prepare` is called with the variant's name before it runs, and is not timed.
    """
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            prepare(name)
            gc.collect()
            start = time.perf_counter()
            done = variant()
            rates[name].append(done / (time.perf_counter() - start))
    return {name: median(values) for name, values in rates.items()}


def create_tables(url: str) -> None:
    """Create the tables, like `postroom init`."""
    store = Store(url)
    store.call(lambda connection: upgrade(connection, store.names))
    store.close()


def show(title: str, rates: Mapping[str, float], floor: str, unit: str) -> None:
    """Print the rates, and their ratios to the floor."""
    print(f"\n{title}")
    for name, rate in rates.items():
        print(f"  {name:<44} {rate:>10,.0f} {unit}   {rate / rates[floor]:.2f} of {floor}")
        note({f"{name}, {unit}": rate})


def note(figures: Mapping[str, float]) -> None:
    """Append figures to the file that the environment names, if it does."""
    if path := os.environ.get(RESULTS):
        with Path(path).open("a") as file:
            file.write(f"{json.dumps(dict(figures))}\n")
