"""Routing: which pattern a topic matches, and in which queue its messages wait for their broker."""

import re
from collections.abc import Collection
from functools import lru_cache
from hashlib import sha256

ANYTHING = "*"
"""Matches any characters, including none. On its own: the pattern for topics that no other pattern matches."""

PREFIX = "topic:"
"""Prefix of the queues that messages are routed into by topic. No other queue may start with it."""

HANDLERS = "handler:"
"""Prefix of the queues in which received messages are parked for their handlers."""

SOURCES = "source:"
"""Prefix under which consumers register what they receive from; it holds no messages."""

LONGEST_QUEUE = 64
_PLAIN = re.compile(r"[!-~]+")
_KNOWN_TOPICS = 4096


def matches(pattern: str, topic: str) -> bool:
    """Whether the topic matches the pattern. ``*`` matches any characters; everything else matches itself."""
    first, *others = pattern.split(ANYTHING)
    if not others:
        return pattern == topic
    if not topic.startswith(first):
        return False
    *between, last = others
    place = len(first)
    for part in between:  # the earliest match is always good enough: no backtracking
        found = topic.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return len(topic) - len(last) >= place and topic.endswith(last)


def expression(pattern: str) -> str:
    """The pattern as a regular expression."""
    return ".*".join(map(re.escape, pattern.split(ANYTHING)))


def best_pattern(patterns: Collection[str], topic: str) -> str | None:
    """The pattern that applies: the topic itself if it is one, else the longest match; None if none matches.

    Patterns of equal length are taken in alphabetical order, so that all relays agree.
    """
    if topic in patterns:
        return topic
    matching = [pattern for pattern in patterns if matches(pattern, topic)]
    return min(matching, key=lambda pattern: (-len(pattern), pattern), default=None)


def queue_of_pattern(pattern: str) -> str:
    """The queue of a pattern's messages: ``topic:orders.*``, or a hash if that is too long or not plain ASCII."""
    return _queue(PREFIX, pattern)


def queue_of_consumer(consumer: str) -> str:
    """The queue in which a consumer's messages are parked: ``handler:billing``, or a hash as above."""
    return _queue(HANDLERS, consumer)


def place_of_source(consumer: str) -> str:
    """The name under which a consumer registers what it receives from, among the queues: ``source:billing``."""
    return _queue(SOURCES, consumer)


def _queue(prefix: str, name: str) -> str:
    plain = f"{prefix}{name}"
    if len(plain) <= LONGEST_QUEUE and _PLAIN.fullmatch(plain):
        return plain
    return f"{prefix}sha256-{sha256(name.encode()).hexdigest()[:32]}"


def is_parked(queue: str) -> bool:
    """Whether the queue holds messages parked for a consumer's handler, rather than messages for a relay."""
    return queue.startswith(HANDLERS)


def is_routed(queue: str) -> bool:
    """Whether messages are routed into this queue by topic."""
    return queue.startswith(PREFIX)


class Routing:
    """Maps topics to queues by patterns."""

    def __init__(self, patterns: Collection[str]) -> None:
        self.queues = {pattern: queue_of_pattern(pattern) for pattern in (*patterns, ANYTHING)}
        """The queue of each pattern, including ``*``."""
        self.queue_of = lru_cache(_KNOWN_TOPICS)(self._queue_of)
        """The queue of a topic; results are cached."""

    def _queue_of(self, topic: str) -> str:
        return self.queues[best_pattern(self.queues, topic) or ANYTHING]
