"""Refusals that several publishers share."""

from __future__ import annotations

from postroom.brokers.port import Refused
from postroom.rules.failures import Failure, Reason

MOST_SHOWN = 255
"""Characters of a topic in an error."""


def timed_out(timeout: float) -> Refused:
    """The broker did not answer in time."""
    return Refused(Reason.TIMEOUT, f"no answer within {timeout:g} s")


def unsendable(error: Exception) -> Refused:
    """The message's headers or attributes cannot be encoded for the broker: no retry can help."""
    return invalid_header(f"it cannot be encoded for the broker: {type(error).__name__}: {error}")


def invalid_header(problem: str) -> Refused:
    """The broker cannot carry a header, or something that becomes one."""
    return Refused(Reason.INVALID_HEADER, problem, Failure.PERMANENT)


def too_large(size: int, limit: int) -> Refused:
    """The message is larger than the broker accepts: no retry can help."""
    problem = f"{size} bytes with headers; the broker accepts {limit}"
    return Refused(Reason.MESSAGE_TOO_LARGE, problem, Failure.PERMANENT)


def invalid_target(topic: str, problem: str) -> Refused:
    """The broker does not accept the topic, or reserves it."""
    return Refused(Reason.INVALID_TARGET, f"topic {topic[:MOST_SHOWN]!r} {problem}", Failure.PERMANENT)
