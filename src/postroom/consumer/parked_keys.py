"""Which keys have a message parked, so that those behind it go the same way."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

ASKED_AGAIN = 100
"""Keys that are asked for again each time, so that those which are done with are forgotten some day."""


class ParkedKeys:
    """What the database said of keys when messages came in, and what was parked here since.

    A message is parked before the next of its key is begun, so that between two questions to the database nothing can
    be overlooked that this process parked; and another one's is seen by the question, which comes after the message.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._since: dict[int, int] = {}

    def ask(self, keys: Collection[int]) -> tuple[int, set[int]]:
        """The database is about to be asked for these; returns the question's number, and what to ask for."""
        self._asked += 1
        return self._asked, {*keys, *islice(self._since, ASKED_AGAIN)}

    def answer(self, question: int, asked: Collection[int], parked: Collection[int]) -> None:
        """The database knows messages of these keys. What was parked while it was asked it may not have seen."""
        for one in asked:
            if one in parked:
                self._since[one] = max(question, self._since.pop(one, 0))  # to the end: the others come before it
            elif self._since.get(one, question) < question:
                del self._since[one]

    def add(self, hashed: int) -> None:
        """A message of this key was parked."""
        self._since[hashed] = self._asked

    def holds(self, hashed: int) -> bool:
        """Whether others of the key must wait."""
        return hashed in self._since
