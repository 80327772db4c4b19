"""What a message costs as the work grows: more relays, a longer backlog, more keys, larger payloads.

``python -m benchmarks scale [--only SERIES …] [--messages N] [--largest N] [--directory PATH]``. Writes the points to
`points.json` there, with a plot of each series, and prints what the model of `benchmarks.capacity` makes of them.
PostgreSQL with fsync, a broker that does nothing.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.capacity import Model
from benchmarks.costs import ground
from benchmarks.plots import Line, plot
from benchmarks.server_costs import spent
from postroom import Outbox
from postroom.bench.scratch import PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.capacity import Point
    from benchmarks.costs import Ground

KEYS = 10_000
POWERS = [10**n for n in range(8)]
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MOST_BYTES = 300_000_000
"""Payloads of one point, altogether."""
ADDED = 1_000
DIRECTORY = Path(__file__).parent.parent / "docs" / "performance"
TITLES = {
    "relays": "relays at work",
    "backlog": "messages waiting",
    "keys": "different keys",
    "size": "bytes of payload",
}


class Scale:
    """Measures one series after another."""

    def __init__(self, place: Ground, messages: int, largest: int) -> None:
        self._ground = place
        self._messages = messages
        self._largest = largest
        self.series: dict[str, Callable[[], Iterator[Point]]] = {
            "relays": self._relays,
            "backlog": self._backlog,
            "keys": self._keys,
            "size": self._size,
        }

    def _relays(self) -> Iterator[Point]:
        for relays in (1, 2, 4, 8):
            for keys in (None, KEYS):
                yield self._point(relays, 2 * self._messages, keys=keys, relays=relays)

    def _backlog(self) -> Iterator[Point]:
        for backlog in POWERS[3:]:
            if backlog <= self._largest:
                for keys in (None, KEYS):
                    yield self._point(backlog, backlog, keys=keys)

    def _keys(self) -> Iterator[Point]:
        for keys in POWERS[:7]:
            if keys <= self._largest:
                yield self._point(keys, max(keys, self._messages), keys=keys)

    def _size(self) -> Iterator[Point]:
        for size in SIZES:
            point = self._point(size, min(self._messages, MOST_BYTES // size), size=size)
            yield {**point, "add_us": self._added(size)}

    def _added(self, size: int) -> float:
        """Microseconds of the server's processor time for a message that is added in a transaction of its own."""
        place, server = self._ground.place, self._ground.server
        outbox, payload = Outbox(schema=place.schema), os.urandom(size)
        place.fill(0)
        with psycopg.connect(place.url) as connection:
            before = spent(server, place.url)
            for _ in range(ADDED):
                outbox.add(connection, "bench", payload)
                connection.commit()
        return spent(server, place.url).since(before).processor / ADDED * 1e6

    def _point(
        self, x: int, messages: int, *, keys: int | None = None, relays: int = 1, size: int = len(PAYLOAD)
    ) -> Point:
        """Fill the tables, and send at most `--messages` of what is there."""
        place, server = self._ground.place, self._ground.server
        place.fill(0)
        before = spent(server, place.url)
        place.fill_more(messages, keys, payload=os.urandom(size))  # which no database can compress
        added = spent(server, place.url).since(before)
        found = self._ground.drain(min(messages, self._messages * relays), relays=relays)
        with psycopg.connect(place.url) as connection:
            [kept] = connection.execute(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = ANY (%s) "
                "AND relnamespace = %s::regnamespace",
                (["outbox", "outbox_receipt"], place.schema),
            ).fetchone() or (0,)
        point = {
            "x": x,
            "keys": keys or 0,
            "relays": relays,
            "size": size,
            **found._asdict(),
            "wal_of_add": added.wal / messages,
            "kept_bytes": float(kept) / messages,
        }
        print("  ".join(f"{name} {value:,.1f}" for name, value in point.items()), flush=True)
        return point


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, print and plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--messages", type=int, default=100_000, help="sent for a point, at most, by each relay")
    parser.add_argument("--largest", type=int, default=1_000_000, help="backlog, or number of keys")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    file = options.directory / "points.json"
    points: dict[str, list[Point]] = json.loads(file.read_text()) if file.exists() else {}
    with ground() as place:
        scale = Scale(place, options.messages, options.largest)
        for name in options.only:
            print(f"\n{TITLES[name]}")
            points[name] = list(scale.series[name]())
            file.write_text(f"{json.dumps(points, indent=1)}\n")
    for name, found in points.items():
        (options.directory / f"{name}.svg").write_text(plot(TITLES[name], "messages a second", _lines(found)))
    if "size" in points:
        _check(Model.fitted(points["size"]), [one for found in points.values() for one in found])


def _lines(points: Iterable[Point]) -> list[Line]:
    lines: dict[str, Line] = {}
    for point in points:
        name = "with keys" if point["keys"] else "no key"
        lines.setdefault(name, Line(name, [])).points.append((point["x"], point["per_second"]))
    return list(lines.values())


def _check(model: Model, points: Sequence[Point]) -> None:
    print(f"\n{model}\n\nmessages a second, as the model says and as measured")
    for point in points:
        predicted = model.rate(int(point["relays"]), point["size"], os.cpu_count() or 1)
        print(
            f"{point['relays']:>3.0f} relays {point['size']:>9,.0f} bytes {point['keys']:>9,.0f} keys "
            f"{predicted:>10,.0f} {point['per_second']:>10,.0f}  {point['per_second'] / predicted:.2f}"
        )
