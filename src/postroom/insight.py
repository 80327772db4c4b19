"""Insight: read-only figures for the command line, pages and probes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from postroom.errors import MessageNotFound
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import State, Stored
from postroom.rules.lifecycle import status as state_of
from postroom.rules.routing import is_parked
from postroom.rules.why_not_sent import Facts, WhyNotSent, why_not_sent

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from uuid import UUID

    from postroom.store.admin.message_lookup import Found, MessageLookup
    from postroom.store.admin.status import StatusReader
    from postroom.store.sql.steps import Steps


@dataclass(frozen=True, slots=True)
class Status:
    """How many messages are in which state, and how long the oldest that could leave has waited."""

    pending: int
    sending: int
    waiting: int
    dead: int
    sent: int
    expired: int
    held: int
    """Pending behind a failed or, under `hold`, dead message of their key; counted in `pending` too."""
    oldest_pending_seconds: float
    relays: list[dict[str, Any]] = field(default_factory=list)
    """Those that are alive."""
    targets: list[dict[str, Any]] = field(default_factory=list)
    """Topics that took no messages when last tried: how many wait for each, since when, and why."""


def status(reader: StatusReader) -> Steps[Status]:
    """The figures of the whole outbox."""
    counts = yield from reader.counts()
    held = yield from reader.held()
    oldest = yield from reader.oldest_pending()
    relays = yield from reader.relays()
    targets = [one._asdict() for one in (yield from reader.held_targets())]
    by_state = {state.value: count for state, count in counts.items()}
    return Status(**by_state, held=held, oldest_pending_seconds=round(oldest, 3), relays=relays, targets=targets)


def messages(
    reader: StatusReader, state: State | None = None, limit: int = 50, before: int | None = None
) -> Steps[list[dict[str, Any]]]:
    """Messages, newest first, without their payloads."""
    return (yield from reader.messages(state, limit, before))


def message(lookup: MessageLookup, identifier: UUID, *, payload: bool = False) -> Steps[dict[str, Any]]:
    """All about one message but the values of its headers, and why it has not left yet; its payload if wanted.

    `reason` is one of `WhyNotSent`, and `explanation` says it in words. Raises `MessageNotFound`.
    """
    found = yield from lookup.find(identifier)
    if found is None:
        raise MessageNotFound(
            f"there is no message {identifier} in the outbox: check the id, as `postroom messages list` shows it; "
            "it may have been removed by retention, discarded or cancelled. What a consumer received has another id "
            "here, which its log calls outbox_id"
        )
    where = why_not_sent(_known(found))
    return {
        **_facts(found),
        "status": _status(found),
        "reason": where.value,
        "explanation": EXPLANATIONS[where](found),
        "blocker": asdict(found.blocker) if found.blocker else None,
        "relays_down": [
            {name: relay[name] for name in ("worker", "broker_down")} for relay in found.relays if relay["broker_down"]
        ],
        "history": [act._asdict() for act in found.history],
        **({"payload": found.message.payload} if payload else {}),
    }


def _facts(found: Found) -> dict[str, Any]:
    told, delivery, receipt, lease = found.message, found.delivery, found.receipt, _lease(found)
    return {
        "id": str(told.id),
        "position": found.position,
        "queue": found.queue,
        "topic": told.topic,
        "type": told.type,
        "key": told.key,
        "aggregate_type": told.aggregate_type,
        "aggregate_id": told.aggregate_id,
        "idempotency_key": told.idempotency_key,
        "content_type": told.content_type,
        "payload_bytes": len(told.payload or b""),
        "headers": sorted(told.headers),
        "digest": told.digest,
        "created_at": told.created_at,
        "expires_at": told.expires_at,
        "attempts": delivery.attempts if delivery else receipt.attempts if receipt else 0,
        "claims": delivery.claims if delivery else None,
        "due": delivery.due if delivery and delivery.state != Stored.DEAD else None,
        "failed_at": delivery.failed_at if delivery else None,
        "error_code": (delivery.error_code or None) if delivery else None,
        "error_message": (delivery.error_message or None) if delivery else None,
        "lane": delivery.lane if delivery and delivery.key_hash is not None else None,
        "read_to": found.lane.read_to if found.lane else None,
        "owner": lease[0] if lease else None,
        "leased_until": lease[1] if lease else None,
        "sent_at": receipt.sent_at if receipt else None,
        "outcome": receipt.outcome if receipt else None,
        "answer": receipt.answer if receipt else None,
    }


def _taken(found: Found) -> bool:
    """Under a lease of its own, or read by the holder of its lane, with nothing before it that holds it."""
    if found.delivery is None or found.delivery.state != Stored.READY:
        return False
    in_lane = found.lane is not None and found.position <= found.lane.read_to and found.blocker is None
    return found.delivery.leased or in_lane


def _lease(found: Found) -> tuple[str, Any] | None:
    """Who has it, or its lane, and until when."""
    if found.delivery and found.delivery.leased:
        return found.delivery.owner, found.delivery.leased_until
    return (found.lane.owner, found.lane.leased_until) if found.lane else None


def _known(found: Found) -> Facts:
    lease = _lease(found)
    down = {relay["worker"] for relay in found.relays if relay["broker_down"]}
    return Facts(
        outcome=found.receipt.outcome if found.receipt else None,
        stored=Stored(found.delivery.state) if found.delivery else None,
        due_passed=found.delivery is None or found.delivery.due_passed,
        waits_for_topic=found.delivery is not None and found.delivery.error_code == Reason.TARGET_UNAVAILABLE,
        blocked=found.blocker is not None,
        taken=_taken(found),
        lane_held=found.lane is not None,
        holder_down=lease is not None and lease[0] in down,
        relays=len(found.relays),
        relays_down=len(down),
    )


def _status(found: Found) -> str | None:
    if found.receipt:
        return (State.EXPIRED if found.receipt.outcome == "expired" else State.SENT).value
    if found.delivery is None:
        return None
    delivery = found.delivery
    return state_of(Stored(delivery.state), due_passed=delivery.due_passed, leased=_taken(found)).value


def _dead(found: Found) -> str:
    again = "has it handled again" if is_parked(found.queue) else "sends it after all"
    return f"given up{_error(found)}; `postroom dead requeue {found.message.id}` {again}"


def _no_relay(found: Found) -> str:
    if is_parked(found.queue):
        return f"no consumer is alive for {found.queue}: start it with `postroom consume`"
    return "no relay is alive: start one"


def _next(found: Found) -> str:
    return f"nothing keeps it: a {'consumer' if is_parked(found.queue) else 'relay'} takes it next"


def _settled(found: Found) -> str:
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


def _held(found: Found) -> str:
    blocker = found.blocker
    if blocker is None:
        return ""
    due = f", next try at {_moment(blocker.due)}" if blocker.due else ""
    error = _said(blocker.error_code, blocker.error_message)
    status = {"failed": "has failed", "requeued": "was re-queued and goes first"}.get(blocker.status, "is dead")
    return f"held behind message {blocker.id or blocker.position} of its key, which {status}{due}{error}"


def _broker_down(found: Found) -> str:
    down = (f"{relay['worker']}: {relay['broker_down']}" for relay in found.relays if relay["broker_down"])
    return f"the broker cannot be reached: {'; '.join(down)}"


def _queued(found: Found) -> str:
    read_to = found.lane.read_to if found.lane else 0
    return f"in its lane behind what is sent now (read up to position {read_to}){_holder(found)}"


def _target_down(found: Found) -> str:
    delivery = found.delivery
    why = f": {delivery.error_message}" if delivery and delivery.error_message else ""
    since = f" since {_moment(delivery.failed_at)}" if delivery and delivery.failed_at else ""
    return f"its topic takes no messages{since}{why}; it goes on by itself when the topic does"


def _holder(found: Found) -> str:
    lease = _lease(found)
    if lease is None:
        return ""
    owner, until = lease
    alive = any(relay["worker"] == owner for relay in found.relays)
    gone = "" if alive else ", which is not alive: another one takes it then"
    return f": leased until {_moment(until)} by {owner}{gone}"


def _error(found: Found) -> str:
    delivery = found.delivery
    return _said(delivery.error_code, delivery.error_message) if delivery else ""


def _said(code: str | None, text: str | None) -> str:
    return f": {code} {text or ''}".rstrip() if code else ""


def _due(found: Found) -> str:
    return _moment(found.delivery.due if found.delivery else None)


def _moment(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "a time that is not known"


EXPLANATIONS: dict[WhyNotSent, Callable[[Found], str]] = {
    WhyNotSent.SENT: _settled,
    WhyNotSent.EXPIRED: _settled,
    WhyNotSent.DEAD: _dead,
    WhyNotSent.SCHEDULED: lambda found: f"scheduled: not before {_due(found)}",
    WhyNotSent.RETRY: lambda found: f"failed{_error(found)}; the next try is at {_due(found)}",
    WhyNotSent.TARGET_DOWN: _target_down,
    WhyNotSent.HELD: _held,
    WhyNotSent.BROKER_DOWN: _broker_down,
    WhyNotSent.SENDING: lambda found: f"being sent{_holder(found)}",
    WhyNotSent.QUEUED: _queued,
    WhyNotSent.NO_RELAY: _no_relay,
    WhyNotSent.NEXT: _next,
    WhyNotSent.NO_DELIVERY: lambda found: (
        "who added it wrote no row into outbox_delivery, so no relay will find it: add that row, or "
        f"`postroom messages cancel {found.message.id}`"
    ),
}
"""Where a message stands, in a sentence for people."""
