"""Runs: positions that follow one another without a gap, which a database finds as one range."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHORTEST = 16
"""Positions in a run, on average: with shorter ones, a statement for each run costs more than one with a list."""


class Run(NamedTuple):
    """All positions from the first to the last."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


def runs(positions: Sequence[int]) -> list[Run]:
    """The runs that ascending positions consist of; none if the positions are too scattered."""
    if not positions:
        return []
    most = max(1, len(positions) // SHORTEST)
    found: list[Run] = []
    for run in _all_runs(positions):
        if len(found) == most:
            return []
        found.append(run)
    return found


def _all_runs(positions: Sequence[int]) -> Iterator[Run]:
    if positions[-1] - positions[0] == len(set(positions)) - 1 == len(positions) - 1:  # mostly there is only one
        yield Run(positions[0], positions[-1])
        return
    first = last = positions[0]
    for position in positions[1:]:
        if position != last + 1:
            yield Run(first, last)
            first = position
        last = position
    yield Run(first, last)
