"""How fast to clean up: batches short enough that nobody waits for one, and pauses between them."""

from typing import NamedTuple

FIRST_ROWS = 1000
LEAST_ROWS, MOST_ROWS = 100, 10_000
AIM = 0.1
"""Seconds that a batch is to take."""
LONGEST_PAUSE = 5.0
DEFAULT_LOAD = 0.25


class Pace(NamedTuple):
    """How to go on after a batch."""

    rows: int
    """How many rows the next batch goes through."""
    pause: float
    """Seconds until then."""


def after_batch(rows: int, took: float, load: float) -> Pace:
    """The pace after a batch that went through so many rows in so many seconds.

    A batch is at most twice as big as the one before, or half as big: one that was slow by chance changes little. The
    pause grows with the time that the batch took, so a busy database is left alone for longer. `load` is the share of
    the time that batches may take: 1 for no pauses.
    """
    factor = min(2.0, max(0.5, AIM / took)) if took > 0 else 2.0
    wanted = min(MOST_ROWS, max(LEAST_ROWS, int(rows * factor)))
    return Pace(wanted, min(LONGEST_PAUSE, max(0.0, took) * (1 - load) / load))
