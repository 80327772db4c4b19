"""Where a message stands, and why it has not left yet: one answer, from what is known about it."""

from dataclasses import dataclass
from enum import StrEnum

from postroom.rules.lifecycle import Stored


class Whereabouts(StrEnum):
    """The one thing that says most about a message; all that there is to say is in this set."""

    SENT = "sent"
    EXPIRED = "expired"
    DEAD = "dead"
    SCHEDULED = "scheduled"
    """Its time has not come."""
    RETRY = "retry"
    """It failed, and its next try is later."""
    TARGET_DOWN = "target_down"
    """Its topic takes no messages: it waits until the topic does."""
    HELD = "held"
    """A failed or dead message stands before it on its key."""
    BROKER_DOWN = "broker_down"
    """Whoever has it, or could take it, does not reach the broker."""
    SENDING = "sending"
    """A relay has it."""
    QUEUED = "queued"
    """A relay holds its lane, and sends what stands before it."""
    NO_RELAY = "no_relay"
    """Nobody is there to take it."""
    NEXT = "next"
    """Nothing keeps it: a relay takes it next."""
    NO_DELIVERY = "no_delivery"
    """Nothing says that it is to be sent, nor that it was."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known about a message, its delivery, and those who could send it."""

    outcome: str | None = None
    """What its receipt says; None where it has none."""
    stored: Stored | None = None
    """What its delivery row says; None where it has none."""
    due_passed: bool = True
    waits_for_topic: bool = False
    """It was not taken last time, because the broker has no place for messages of its topic."""
    blocked: bool = False
    """A message that holds its key back stands before it."""
    taken: bool = False
    """Under a lease of its own, or read by the holder of its lane."""
    lane_held: bool = False
    holder_down: bool = False
    """Whoever holds it or its lane does not reach the broker."""
    relays: int = 0
    """Alive, for its queue."""
    relays_down: int = 0
    """Those of them that do not reach the broker."""


def whereabouts(known: Circumstances) -> Whereabouts:
    """Tell where the message stands. A receipt counts before all else."""
    if known.outcome is not None:
        return Whereabouts.EXPIRED if known.outcome == "expired" else Whereabouts.SENT
    match known.stored:
        case None:
            return Whereabouts.NO_DELIVERY
        case Stored.DEAD:
            return Whereabouts.DEAD
        case Stored.SCHEDULED if not known.due_passed:
            return Whereabouts.SCHEDULED
        case Stored.RETRY if not known.due_passed:
            return Whereabouts.TARGET_DOWN if known.waits_for_topic else Whereabouts.RETRY
        case _:
            return _of_what_is_due(known)


def _of_what_is_due(known: Circumstances) -> Whereabouts:
    if known.blocked:
        return Whereabouts.HELD
    if _broker_down(known):
        return Whereabouts.BROKER_DOWN
    if known.taken:
        return Whereabouts.SENDING
    if known.lane_held:
        return Whereabouts.QUEUED
    return Whereabouts.NEXT if known.relays else Whereabouts.NO_RELAY


def _broker_down(known: Circumstances) -> bool:
    """Only its holder matters where it has one; else it leaves with any relay that reaches the broker."""
    if known.taken or known.lane_held:
        return known.holder_down
    return 0 < known.relays == known.relays_down
