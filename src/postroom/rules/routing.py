"""Routing: which pattern a topic belongs to, and in which queue its messages wait for their broker."""

import re
from collections.abc import Collection
from functools import lru_cache
from hashlib import sha256

ANYTHING = "*"
"""Stands in a pattern for any characters, also none; alone, it is the pattern of all that no other one matches."""

PREFIX = "topic:"
"""What the names of the queues begin with that messages are sorted into. No other queue may begin so."""

HANDLERS = "handler:"
"""What the names of the queues begin with in which received messages are parked for their handlers."""

SOURCES = "source:"
"""What the names begin with under which consumers say that they receive; no message is there."""

LONGEST_QUEUE = 64
_PLAIN = re.compile(r"[!-~]+")
_KNOWN_TOPICS = 4096


def matches(pattern: str, topic: str) -> bool:
    """Whether the topic belongs to the pattern. In a pattern ``*`` stands for any characters; all else for itself."""
    first, *others = pattern.split(ANYTHING)
    if not others:
        return pattern == topic
    if not topic.startswith(first):
        return False
    *between, last = others
    place = len(first)
    for part in between:  # each as early as can be, so that nothing has to be tried twice
        found = topic.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(topic) - len(last) >= place and topic.endswith(last)


def expression(pattern: str) -> str:
    """The pattern as a regular expression."""
    return ".*".join(map(re.escape, pattern.split(ANYTHING)))


def best_pattern(patterns: Collection[str], topic: str) -> str | None:
    """The pattern that decides: the topic itself where it is one, else the longest; None where none matches.

    Of several that are equally long it is the first in the order of the alphabet, so that all relays agree.
    """
    if topic in patterns:
        return topic
    matching = [pattern for pattern in patterns if matches(pattern, topic)]
    return min(matching, key=lambda pattern: (-len(pattern), pattern), default=None)


def queue_of_pattern(pattern: str) -> str:
    """The queue of a pattern's messages: ``topic:orders.*``. A hash where that is too long, or not plain ASCII."""
    return _queue(PREFIX, pattern)


def queue_of_consumer(consumer: str) -> str:
    """The queue in which a consumer's messages are parked: ``handler:billing``, or a hash as well."""
    return _queue(HANDLERS, consumer)


def place_of_source(consumer: str) -> str:
    """Under which name a consumer says what it receives from, among the queues: ``source:billing``."""
    return _queue(SOURCES, consumer)


def _queue(prefix: str, name: str) -> str:
    plain = f"{prefix}{name}"
    if len(plain) <= LONGEST_QUEUE and _PLAIN.fullmatch(plain):
        return plain
    return f"{prefix}sha256-{sha256(name.encode()).hexdigest()[:32]}"


def is_parked(queue: str) -> bool:
    """Whether the messages of this queue wait for a consumer's handler, and not for a relay."""
    return queue.startswith(HANDLERS)


def is_sorted(queue: str) -> bool:
    """Whether messages come into this queue by their topic."""
    return queue.startswith(PREFIX)


class Routing:
    """Which queue a topic's messages belong into, by patterns."""

    def __init__(self, patterns: Collection[str]) -> None:
        self.queues = {pattern: queue_of_pattern(pattern) for pattern in (*patterns, ANYTHING)}
        """Each pattern's queue, that of what no other one matches included."""
        self.queue_of = lru_cache(_KNOWN_TOPICS)(self._queue_of)
        """The queue of a topic: a function, which remembers the topics that it has seen."""

    def _queue_of(self, topic: str) -> str:
        return self.queues[best_pattern(self.queues, topic) or ANYTHING]
