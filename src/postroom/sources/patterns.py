"""Topic patterns: what a star matches, and which brokers support it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.routing import ANYTHING, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

STAR = ANYTHING


def check_topics(topics: Sequence[str]) -> Sequence[str]:
    """The topics without repetitions. Raises `InvalidSetting` if there are none."""
    found = list(dict.fromkeys(topics))
    if not found or not all(found):
        raise InvalidSetting("a source needs topics to receive: give at least one, for example orders.created")
    return found


def is_pattern(topic: str) -> bool:
    """Whether the topic has a star, which matches any characters."""
    return STAR in topic


def matcher(topics: Collection[str]) -> Callable[[str], bool]:
    """A function that tells whether a topic matches one of these."""
    return lambda topic: any(matches(pattern, topic) for pattern in topics)


def whole_words(broker: str, topic: str) -> list[str]:
    """The topic's words between the dots. Raises `InvalidSetting` if a star is only part of a word."""
    words = topic.split(".")
    if any(STAR in word and word != STAR for word in words):
        raise InvalidSetting(
            f"{broker}: topic {topic!r}: a star must stand for whole words between dots: write orders.* or *"
        )
    return words


def no_pattern(broker: str, topic: str, remedy: str) -> None:
    """Raise `InvalidSetting` if the topic has a star, which this broker does not support."""
    if is_pattern(topic):
        raise InvalidSetting(f"{broker}: topic {topic!r}: patterns are not supported: {remedy}")
