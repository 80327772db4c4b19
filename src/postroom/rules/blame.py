"""Whose fault it is that a message could not be handed to the broker: the broker's, its topic's, or its own."""

from enum import Enum, auto


class Fault(Enum):
    """Who is at fault, and so what is held back."""

    BROKER = auto()
    """Nothing gets through: all waits, and no attempt counts."""
    TARGET = auto()
    """Others get through, but none of its topic: the topic waits, and no attempt counts."""
    MESSAGE = auto()
    """Others of its topic get through: a failed attempt of this message."""
    UNDECIDED = auto()
    """It cannot be told yet: the message is tried again soon, and no attempt counts."""


def of_unreached(*, alone: bool, beside: bool, broker_worked: bool, target_worked: bool) -> Fault:
    """Judge a message with which the broker could not be reached.

    `alone`: nothing else was sent with it that it could have dragged down, or that could have dragged it down.
    `beside`: the broker answered to others of the same call. `broker_worked`, `target_worked`: since the message failed
    before, a later call of the broker has brought an answer, and something of the message's topic through. So what is
    the broker's or the topic's own trouble never counts against a message.
    """
    if beside:
        return Fault.UNDECIDED
    if not broker_worked:
        return Fault.BROKER
    if not alone:
        return Fault.UNDECIDED
    return Fault.MESSAGE if target_worked else Fault.TARGET


def of_unavailable(*, by_message: bool, beside: bool, target_worked: bool) -> Fault:
    """Judge a message for whose topic the broker says that it has no place.

    `by_message`: that may depend on more of the message than its topic. `beside`: others of the topic were taken in
    the same call. `target_worked` as above.
    """
    if by_message and target_worked:
        return Fault.MESSAGE
    return Fault.UNDECIDED if beside else Fault.TARGET
