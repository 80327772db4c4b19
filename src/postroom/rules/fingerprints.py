"""Fingerprints of errors: what many failures of one cause have in common, whatever ids and numbers they name."""

from __future__ import annotations

import re

ELSE = "…"
"""Takes the place of what differs."""

_DIFFERS = re.compile(
    r"""
    "[^"]*" | '[^']*(?:'(?!\w)|'$) | `[^`]*`                                    # quoted; not the apostrophe in "can't"
    | \b[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}\b                # a UUID
    | \b(?=[0-9a-fA-F]*[0-9])(?:0x)?[0-9a-fA-F]{8,}\b                           # a hash, an address, a long id
    | \d+(?:[.:,\-]\d+)*                                                        # a number, a time, a version, an IP
    """,
    re.VERBOSE,
)


def fingerprint(message: str) -> str:
    """The message of an error with numbers, ids and quoted values replaced by `ELSE`."""
    return _DIFFERS.sub(ELSE, message)


def spread(counts: dict[int, int], first: int, last: int, buckets: int) -> tuple[int, ...]:
    """Counts by the hour, in this many buckets of equal width from the first hour to the last."""
    width = max(1, -(-(last - first + 1) // buckets))
    told = [0] * buckets
    for hour, count in counts.items():
        told[min(max(0, hour - first) // width, buckets - 1)] += count
    return tuple(told)
