"""Why a message has not been sent yet: one reason, from what is known about it."""

from dataclasses import dataclass
from enum import StrEnum

from postroom.rules.lifecycle import Stored


class WhyNotSent(StrEnum):
    """The main reason why a message has not been sent, or that it is settled."""

    SENT = "sent"
    EXPIRED = "expired"
    DEAD = "dead"
    SCHEDULED = "scheduled"
    """Its delivery time has not come."""
    RETRY = "retry"
    """It failed, and its next attempt is later."""
    TARGET_DOWN = "target_down"
    """Its topic takes no messages now."""
    HELD = "held"
    """A failed or dead message of the same key is in front of it."""
    BROKER_DOWN = "broker_down"
    """The relay that holds it, or every relay that could take it, cannot reach the broker."""
    SENDING = "sending"
    """A relay holds it."""
    QUEUED = "queued"
    """A relay holds its lane, and is sending what is in front of it."""
    NO_RELAY = "no_relay"
    """No relay is alive for its queue."""
    NEXT = "next"
    """Nothing holds it back: a relay takes it next."""
    IN_STREAM = "in_stream"
    """It has no delivery: the relay that reads the write-ahead log comes to it."""
    NO_READER = "no_reader"
    """It has no delivery, and no relay reads the write-ahead log."""
    NO_DELIVERY = "no_delivery"
    """It has neither a delivery nor a receipt."""


STREAMED = (WhyNotSent.IN_STREAM, WhyNotSent.NO_READER)
"""It is in the stream, where nobody can stop it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a message, its delivery, and the relays that could send it."""

    outcome: str | None = None
    """The outcome in its receipt; None if it has none."""
    stored: Stored | None = None
    """The state in its delivery row; None if it has none."""
    streamed: bool = False
    """It was written without a delivery, to be read from the write-ahead log."""
    stream_read: bool = False
    """A relay reads the write-ahead log."""
    due_passed: bool = True
    waits_for_topic: bool = False
    """The broker had no place for messages of its topic at the last attempt."""
    blocked: bool = False
    """A message in front of it holds back its key."""
    taken: bool = False
    """It is under a lease of its own, or was read by the holder of its lane."""
    lane_held: bool = False
    holder_down: bool = False
    """The holder of it or of its lane cannot reach the broker."""
    relays: int = 0
    """Relays alive for its queue."""
    relays_down: int = 0
    """Relays among them that cannot reach the broker."""


def why_not_sent(known: Facts) -> WhyNotSent:
    """Find the reason. A receipt counts before everything else."""
    if known.outcome is not None:
        return WhyNotSent.EXPIRED if known.outcome == "expired" else WhyNotSent.SENT
    match known.stored:
        case None:
            return _without_delivery(known)
        case Stored.DEAD:
            return WhyNotSent.DEAD
        case Stored.SCHEDULED if not known.due_passed:
            return WhyNotSent.SCHEDULED
        case Stored.RETRY if not known.due_passed:
            return WhyNotSent.TARGET_DOWN if known.waits_for_topic else WhyNotSent.RETRY
        case _:
            return _of_what_is_due(known)


def _without_delivery(known: Facts) -> WhyNotSent:
    if not known.streamed:
        return WhyNotSent.NO_DELIVERY
    return WhyNotSent.IN_STREAM if known.stream_read else WhyNotSent.NO_READER


def _of_what_is_due(known: Facts) -> WhyNotSent:
    if known.blocked:
        return WhyNotSent.HELD
    if _broker_down(known):
        return WhyNotSent.BROKER_DOWN
    if known.taken:
        return WhyNotSent.SENDING
    if known.lane_held:
        return WhyNotSent.QUEUED
    return WhyNotSent.NEXT if known.relays else WhyNotSent.NO_RELAY


def _broker_down(known: Facts) -> bool:
    """If the message is held, only its holder matters; otherwise any relay that reaches the broker can send it."""
    if known.taken or known.lane_held:
        return known.holder_down
    return 0 < known.relays == known.relays_down
