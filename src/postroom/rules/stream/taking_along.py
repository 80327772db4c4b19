"""What is recorded together: a message that was not sent takes along all that was read behind it on its key.

Else one of those could be recorded first, and leave by the table before the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Together(NamedTuple):
    """What a record of unsent messages means for the others of their keys."""

    along: list[int]
    """Positions to record with them: they come behind one that was not sent."""
    too_early: set[str]
    """Keys of which something before them is still being sent: they are recorded when its fate is known."""


def together(unsent: Mapping[str, int], undecided: Iterable[tuple[str | None, int]]) -> Together:
    """Decide what goes along with the unsent, of which the first position of each key is given.

    `undecided` are key and position of all other messages in flight, in the order in which they were read.
    """
    along: list[int] = []
    too_early: set[str] = set()
    for key, position in undecided:
        if key is not None and key in unsent:
            if position > unsent[key]:
                along.append(position)
            else:
                too_early.add(key)
    return Together(along, too_early)
