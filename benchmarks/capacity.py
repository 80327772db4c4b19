"""The capacity model: what a message costs, by the size of its payload, and so what a deployment needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Point = Mapping[str, float]
    """What was measured (see `benchmarks.scale`)."""

DAY = 86_400
SPARE = 0.6
"""The share of a core that a steady load may take: the rest is for peaks, and for what is to be caught up with."""
CONNECTIONS = 6
"""Of one relay."""


class Cost(NamedTuple):
    """A fixed part, and one for each byte of payload."""

    fixed: float
    a_byte: float

    def of(self, size: float) -> float:
        """That of a message."""
        return self.fixed + self.a_byte * size


class Needs(NamedTuple):
    """What a steady load needs."""

    relays: int
    connections: int
    relay_cores: float
    server_cores: float
    """For adding and for sending."""
    wal_bytes_a_second: float
    disk_bytes: float


@dataclass(frozen=True, slots=True)
class Model:
    """What a message costs on the machine that was measured."""

    python_us: Cost
    """A relay's processor time."""
    server_us: Cost
    """The server's, to send it."""
    add_us: Cost
    """The server's, to add it in a transaction of its own."""
    wal_bytes: Cost
    kept_bytes: Cost

    @classmethod
    def fitted(cls, points: Sequence[Point]) -> Model:
        """The model that fits points of several sizes."""
        sizes = [point["size"] for point in points]

        def fit(*names: str) -> Cost:
            return _fit(sizes, [sum(point[name] for name in names) for point in points])

        return cls(fit("python_us"), fit("server_us"), fit("add_us"), fit("wal_bytes", "wal_of_add"), fit("kept_bytes"))

    def rate(self, relays: int, size: float, cores: int) -> float:
        """Messages a second that so many relays can send, with the database on the same cores.

        A relay is one process, and claims on one connection while it settles on another.
        """
        python, server = self.python_us.of(size), self.server_us.of(size)
        return 1e6 * min(relays / max(python, server / 2), cores / (python + server))

    def needs(self, rate: float, size: float, days: float) -> Needs:
        """What it takes to send so many messages a second, and to keep them for so many days."""
        relay_cores = rate * self.python_us.of(size) / 1e6 / SPARE
        relays = max(2, int(-(-relay_cores // 1)))
        return Needs(
            relays,
            relays * CONNECTIONS,
            relay_cores,
            rate * (self.server_us.of(size) + self.add_us.of(size)) / 1e6 / SPARE,
            rate * self.wal_bytes.of(size),
            rate * DAY * days * self.kept_bytes.of(size),
        )


def _fit(sizes: Sequence[float], costs: Sequence[float]) -> Cost:
    """The line with the least relative errors, so that small messages count as much as large ones."""
    weights = [1 / cost**2 for cost in costs]
    total = sum(weights)
    size = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    cost = sum(w * y for w, y in zip(weights, costs, strict=True)) / total
    spread = sum(w * (x - size) ** 2 for w, x in zip(weights, sizes, strict=True))
    both = sum(w * (x - size) * (y - cost) for w, x, y in zip(weights, sizes, costs, strict=True))
    a_byte = max(both / spread, 0.0) if spread else 0.0
    return Cost(cost - a_byte * size, a_byte)
