"""Turns topics into label values, of which there are never many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postroom.rules.labels import bounded, without_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.message import Message

MOST_TOPICS = 50
"""Topics that have a label of their own, for each process; those that come later share one."""
MOST_CACHED = 4096
"""Topics whose label is remembered."""


class TopicLabels:
    """The labels given so far: first come, first served. A topic keeps its label while the process runs."""

    def __init__(self, most: int = MOST_TOPICS) -> None:
        self._most = most
        self._labels: dict[str, str] = {}
        self._known: set[str] = set()

    def of(self, topic: str) -> str:
        """The label of a topic."""
        label = self._labels.get(topic)
        return self._new(topic) if label is None else label

    def counted(self, messages: Sequence[Message]) -> Mapping[str, int]:
        """How many messages have which label."""
        if len(messages) == 1:
            return {self.of(messages[0].topic): 1}
        counts: Counter[str] = Counter()
        for topic, count in Counter([message.topic for message in messages]).items():
            counts[self.of(topic)] += count
        return counts

    def _new(self, topic: str) -> str:
        label = bounded(without_ids(topic), self._known, self._most)
        if len(self._known) < self._most:
            self._known.add(label)
        if len(self._labels) < MOST_CACHED:
            self._labels[topic] = label
        return label
