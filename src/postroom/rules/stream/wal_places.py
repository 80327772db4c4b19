"""Places in the write-ahead log, as numbers and as PostgreSQL writes them; and names that follow from an outbox's."""

from __future__ import annotations

import re
from hashlib import sha256

_LONGEST = 40


def from_text(place: str) -> int:
    """The number of a place: ``16/B374D848``."""
    high, _, low = place.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def as_text(place: int) -> str:
    """A place as PostgreSQL writes it."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def slot_name(database: str, schema: str, prefix: str) -> str:
    """The name of an outbox's slot. All databases of a server share the names of slots: at most 63 of ``a-z0-9_``."""
    plain = f"{database}.{schema}.{prefix}"
    words = re.sub("[^a-z0-9]+", "_", plain.lower()).strip("_")[:_LONGEST].strip("_")
    return f"postroom_{words}_{sha256(plain.encode()).hexdigest()[:8]}"


def publication_name(schema: str, prefix: str) -> str:
    """The name of an outbox's publication, in its database."""
    return f"{schema}_{prefix}outbox" if len(schema) + len(prefix) <= _LONGEST else f"postroom_{_hash(schema, prefix)}"


def _hash(schema: str, prefix: str) -> str:
    return sha256(f"{schema}.{prefix}".encode()).hexdigest()[:16]
