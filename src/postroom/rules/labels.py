"""Topics as labels of metrics: without ids, and not too many of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

OTHER = "other"
"""Stands for all topics beyond the limit."""
ANY = "*"
"""Stands for an id within a topic."""
LONG = 16
"""From this length on, a word with a digit in it is taken for an id."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_WORD = re.compile(r"[0-9A-Za-z]+")


def without_ids(topic: str) -> str:
    """The topic with ``*`` for each UUID, number and long word with a digit in it: ``orders.*.created``."""
    return _WORD.sub(lambda word: ANY if _is_id(word[0]) else word[0], _UUID.sub(ANY, topic))


def bounded(value: str, known: Collection[str], most: int) -> str:
    """The value if it is one of the known, or there is room for one more; otherwise `OTHER`."""
    return value if value in known or len(known) < most else OTHER


def _is_id(word: str) -> bool:
    return word.isdigit() or (len(word) >= LONG and any(letter.isdigit() for letter in word))
