"""Where a reader of the stream begins, by what the last one left on record and what the server says of the slot."""

from __future__ import annotations

from typing import NamedTuple


class Left(NamedTuple):
    """What the last reader left on record."""

    slot: str
    """The slot that it read; empty if there never was one."""
    system_id: str
    """The server of which `done` is a place."""
    done: int
    read_to: int
    """Beyond this place it read nothing; 0 if that is not known."""
    interrupted: bool
    """It did not leave by itself."""


class Found(NamedTuple):
    """What the server says now."""

    slot: str
    system_id: str
    confirmed: int
    """The place from which the slot shows everything."""
    end: int
    """The end of the log."""


class Start(NamedTuple):
    """Where to begin."""

    done: int
    """Everything before this place is settled or on record, once the sweep is done."""
    needs_sweep: bool
    """It is not the slot that was read last: what came between is in the table alone."""
    known_until: int
    """Of what was committed before this place, some may have been read before; 0: of all that is there now."""


def start(left: Left, found: Found) -> Start:
    """Decide it. `confirmed` is never further than `done` for a slot that readers alone have read."""
    fits = left.slot == found.slot and left.system_id == found.system_id and left.done <= found.end
    needs_sweep = not fits or found.confirmed > left.done
    is_known = not needs_sweep and not left.interrupted
    return Start(max(found.confirmed, left.done if fits else 0), needs_sweep, left.read_to if is_known else 0)


def read_before(known_until: int, read_to: int, open_commit: int | None = None) -> int:
    """The place from which on nothing was handed over, by a reader or by those before it, as `Left.read_to` says it.

    `known_until`: from where on it was the first to read; `read_to`: the end of the last transaction that it read as a
    whole; `open_commit`: the commit of one that it has read in part.
    """
    return max(known_until, read_to, 0 if open_commit is None else open_commit + 1)
