"""Where a message stands, in a sentence for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.naming import (
    SAGA_ID,
    SAGA_QUEUE,
    SAGA_START,
    TWOPHASE_QUEUE,
    TWOPHASE_RECOVER,
    is_saga_queue,
)
from postroom.rules.routing import is_parked
from postroom.rules.stream.modes import Mode
from postroom.rules.why_not_sent import WhyNotSent

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from postroom.store.admin.message_lookup import FoundMessage

    Holder = tuple[str, datetime | None] | None
    """Who has the message, or its lane, and until when."""


def explanation_of(where: WhyNotSent, found: FoundMessage, holder: Holder) -> str:
    """The sentence, with the facts and, where there is something to do, the remedy."""
    name, identifier = found.queue.removeprefix(SAGA_QUEUE), found.message.headers.get(SAGA_ID)
    if is_saga_queue(found.queue) and found.message.type == SAGA_START and identifier:
        return f"starts a saga: see `postroom sagas show {name} {identifier}`"
    if found.queue == TWOPHASE_QUEUE and found.message.type == TWOPHASE_RECOVER and found.message.aggregate_id:
        return f"recovers a two-phase commit: see `postroom transactions show {found.message.aggregate_id}`"
    return EXPLANATIONS[where](found, holder)


def _settled(found: FoundMessage, _holder: Holder) -> str:
    receipt = found.receipt
    if receipt is None:
        return ""
    at = _moment(receipt.sent_at)
    match receipt.outcome:
        case "expired":
            return f"expired at {at}, before it was sent"
        case "duplicate":
            return f"not sent at {at}, because the same content was sent before"
        case _:
            answer = f"; the broker answered {receipt.answer}" if receipt.answer else ""
            return f"{'handled' if is_parked(found.queue) else 'sent'} at {at}{answer}"


def _dead(found: FoundMessage, _holder: Holder) -> str:
    again = "has it handled again" if is_parked(found.queue) else "sends it after all"
    return f"given up{_error(found)}; `postroom dead requeue {found.message.id}` {again}"


def _scheduled(found: FoundMessage, _holder: Holder) -> str:
    return f"scheduled: not before {_due(found)}"


def _retry(found: FoundMessage, _holder: Holder) -> str:
    return f"failed{_error(found)}; the next try is at {_due(found)}"


def _target_down(found: FoundMessage, _holder: Holder) -> str:
    delivery = found.delivery
    why = f": {delivery.error_message}" if delivery and delivery.error_message else ""
    since = f" since {_moment(delivery.failed_at)}" if delivery and delivery.failed_at else ""
    return f"its topic takes no messages{since}{why}; it goes on by itself when the topic does"


def _held(found: FoundMessage, _holder: Holder) -> str:
    blocker = found.blocker
    if blocker is None:
        return ""
    due = f", next try at {_moment(blocker.due)}" if blocker.due else ""
    error = _said(blocker.error_code, blocker.error_message)
    status = {"failed": "has failed", "requeued": "was requeued and goes first"}.get(blocker.status, "is dead")
    return f"held behind message {blocker.id or blocker.position} of its key, which {status}{due}{error}"


def _broker_down(found: FoundMessage, _holder: Holder) -> str:
    down = (f"{worker.name}: {worker.broker_down}" for worker in found.workers if worker.broker_down)
    return f"the broker cannot be reached: {'; '.join(down)}"


def _sending(found: FoundMessage, holder: Holder) -> str:
    return f"being sent{_held_by(found, holder)}"


def _queued(found: FoundMessage, holder: Holder) -> str:
    read_to = found.lane.read_to if found.lane else 0
    return f"in its lane behind what is sent now (read up to position {read_to}){_held_by(found, holder)}"


def _no_relay(found: FoundMessage, _holder: Holder) -> str:
    if is_parked(found.queue):
        return f"no consumer is alive for {found.queue}: start it with `postroom consume`"
    return "no relay is alive: start one"


def _next(found: FoundMessage, _holder: Holder) -> str:
    return f"nothing holds it back: a {'consumer' if is_parked(found.queue) else 'relay'} takes it next"


def _in_stream(found: FoundMessage, _holder: Holder) -> str:
    return f"in the stream, read next by {found.stream.owner if found.stream else ''}"


def _no_reader(found: FoundMessage, _holder: Holder) -> str:
    if found.stream is not None and found.stream.mode is Mode.TABLE:
        return "left in the stream, which nobody reads any more: `postroom cdc sweep` gives it a delivery"
    return "in the stream, which no relay reads: start `postroom relay --cdc`, or go back with `postroom cdc off`"


def _no_delivery(found: FoundMessage, _holder: Holder) -> str:
    return (
        "its producer wrote no row into outbox_delivery, so no relay will find it: add that row, or "
        f"`postroom messages cancel {found.message.id}`"
    )


def _held_by(found: FoundMessage, holder: Holder) -> str:
    if holder is None:
        return ""
    owner, until = holder
    alive = any(worker.name == owner for worker in found.workers)
    gone = "" if alive else ", which is not alive: another one takes it then"
    return f": leased until {_moment(until)} by {owner}{gone}"


def _error(found: FoundMessage) -> str:
    delivery = found.delivery
    return _said(delivery.error_code, delivery.error_message) if delivery else ""


def _said(code: str | None, text: str | None) -> str:
    return f": {code} {text or ''}".rstrip() if code else ""


def _due(found: FoundMessage) -> str:
    return _moment(found.delivery.due if found.delivery else None)


def _moment(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "an unknown time"


EXPLANATIONS: dict[WhyNotSent, Callable[[FoundMessage, Holder], str]] = {
    WhyNotSent.SENT: _settled,
    WhyNotSent.EXPIRED: _settled,
    WhyNotSent.DEAD: _dead,
    WhyNotSent.SCHEDULED: _scheduled,
    WhyNotSent.RETRY: _retry,
    WhyNotSent.TARGET_DOWN: _target_down,
    WhyNotSent.HELD: _held,
    WhyNotSent.BROKER_DOWN: _broker_down,
    WhyNotSent.SENDING: _sending,
    WhyNotSent.QUEUED: _queued,
    WhyNotSent.NO_RELAY: _no_relay,
    WhyNotSent.NEXT: _next,
    WhyNotSent.IN_STREAM: _in_stream,
    WhyNotSent.NO_READER: _no_reader,
    WhyNotSent.NO_DELIVERY: _no_delivery,
}
