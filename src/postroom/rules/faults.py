"""Why a message could not be handed to the broker: because of the broker, its topic, or the message itself."""

from enum import Enum, auto


class Fault(Enum):
    """What is at fault, and so what is held back."""

    BROKER = auto()
    """Nothing gets through: everything waits, and no attempt counts."""
    TARGET = auto()
    """Others get through, but none of its topic: the topic waits, and no attempt counts."""
    MESSAGE = auto()
    """Others of its topic get through: a failed attempt of this message."""
    UNDECIDED = auto()
    """Not known yet: the message is retried soon, and no attempt counts."""


def of_unreached(*, alone: bool, beside: bool, broker_worked: bool, target_worked: bool) -> Fault:
    """Find the fault for a message with which the broker could not be reached.

    `alone`: the message was sent alone, so no other message can have caused the failure. `beside`: the broker answered
    for other messages of the same call. `broker_worked`, `target_worked`: since the message last failed, a later call
    got an answer from the broker, or something of the message's topic through. An outage of the broker or the topic
    therefore never counts against a message.
    """
    if beside:
        return Fault.UNDECIDED
    if not broker_worked:
        return Fault.BROKER
    if not alone:
        return Fault.UNDECIDED
    return Fault.MESSAGE if target_worked else Fault.TARGET


def of_unavailable(*, by_message: bool, beside: bool, target_worked: bool) -> Fault:
    """Find the fault for a message whose topic the broker has no place for.

    `by_message`: this may depend on more of the message than its topic. `beside`: other messages of the topic were
    accepted in the same call. `target_worked`: as above.
    """
    if by_message and target_worked:
        return Fault.MESSAGE
    return Fault.UNDECIDED if beside else Fault.TARGET


def of_whole_call(*, alone: bool) -> Fault:
    """Find the fault for a message of a call that was answered, and failed as a whole; `alone`: as above."""
    return Fault.MESSAGE if alone else Fault.UNDECIDED
