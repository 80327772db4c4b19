"""Everything about one message, and why it has not left yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.admin.explanations import explanation_of
from postroom.admin.timeline import TimelineEvent, timeline_of
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import State, Stored
from postroom.rules.lifecycle import status as state_of
from postroom.rules.naming import REPLAY_OF
from postroom.rules.why_not_sent import Facts, WhyNotSent, why_not_sent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from postroom.store.admin.audit import AuditEntry
    from postroom.store.admin.message_lookup import Blocker, FoundMessage, Receipt
    from postroom.store.admin.status import Worker


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is still to be sent, or was given up."""

    attempts: int
    """Failed sends."""
    claims: int
    """Claims since it was last settled; of a message with a key, only those after a worker was interrupted."""
    lane: int | None
    """The lane of its key; None without a key."""
    due: datetime | None
    """Not before this moment; None if it is due at once, or dead."""
    failed_at: datetime | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that has not ended, on the message or on its lane."""

    owner: str
    until: datetime | None
    read_to: int | None
    """Of a lane: the position up to which its owner has read it."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a message has not left yet, or how it left."""

    reason: WhyNotSent
    explanation: str
    """The reason in a sentence, with the facts."""
    blocker: Blocker | None
    """The message of its key that holds it back."""
    workers_down: tuple[Worker, ...]
    """The workers of its queue that cannot reach their broker."""


@dataclass(frozen=True, slots=True)
class MessageDetails:
    """One message. Its payload and the values of its headers are None unless they were asked for."""

    id: UUID
    position: int
    queue: str
    topic: str
    type: str | None
    key: str | None
    aggregate_type: str | None
    aggregate_id: str | None
    idempotency_key: str | None
    content_type: str
    payload_bytes: int
    headers: tuple[str, ...]
    """Their names."""
    digest: str | None
    created_at: datetime | None
    expires_at: datetime | None
    status: State | None
    """None for half a message: one without a delivery, which no relay will find."""
    attempts: int
    why: Why
    delivery: Delivery | None
    """None once it is settled, and while it is in the stream: see `WhyNotSent.IN_STREAM`."""
    receipt: Receipt | None
    """None until it is settled."""
    lease: Lease | None
    history: tuple[AuditEntry, ...]
    """What was done to it, oldest first."""
    timeline: tuple[TimelineEvent, ...]
    """What is on record about it: added, failed attempts, what was done to it, and how it ended; oldest first."""
    replay_of: str | None
    """The id of the message that it is a changed copy of."""
    payload: bytes | None = None
    header_values: Mapping[str, str] | None = None
    """Names and values of its headers; None unless they were asked for."""


def details_of(found: FoundMessage, *, payload: bool, headers: bool = False) -> MessageDetails:
    """What is told about a message, from what the tables say."""
    told, delivery, receipt = found.message, _delivery(found), found.receipt
    return MessageDetails(
        id=told.id,
        position=found.position,
        queue=found.queue,
        topic=told.topic,
        type=told.type,
        key=told.key,
        aggregate_type=told.aggregate_type,
        aggregate_id=told.aggregate_id,
        idempotency_key=told.idempotency_key,
        content_type=told.content_type,
        payload_bytes=len(told.payload or b""),
        headers=tuple(sorted(told.headers)),
        digest=told.digest,
        created_at=told.created_at,
        expires_at=told.expires_at,
        status=_status(found),
        attempts=delivery.attempts if delivery else receipt.attempts if receipt else 0,
        why=_why(found),
        delivery=delivery,
        receipt=receipt,
        lease=_lease(found),
        history=found.history,
        timeline=timeline_of(found),
        replay_of=told.headers.get(REPLAY_OF),
        payload=bytes(told.payload) if payload and told.payload is not None else None,
        header_values=dict(sorted(told.headers.items())) if headers else None,
    )


def _delivery(found: FoundMessage) -> Delivery | None:
    row = found.delivery
    if row is None:
        return None
    return Delivery(
        attempts=row.attempts,
        claims=row.claims,
        lane=row.lane if row.key_hash is not None else None,
        due=row.due if row.state != Stored.DEAD else None,
        failed_at=row.failed_at,
        error_code=row.error_code or None,
        error_message=row.error_message or None,
    )


def _lease(found: FoundMessage) -> Lease | None:
    """Who has it, or its lane, and until when."""
    read_to = found.lane.read_to if found.lane else None
    if found.delivery and found.delivery.leased:
        return Lease(found.delivery.owner, found.delivery.leased_until, read_to)
    return Lease(found.lane.owner, found.lane.leased_until, read_to) if found.lane else None


def _taken(found: FoundMessage) -> bool:
    """Under a lease of its own, or read by the holder of its lane, with nothing before it that holds it."""
    if found.delivery is None or found.delivery.state != Stored.READY:
        return False
    in_lane = found.lane is not None and found.position <= found.lane.read_to and found.blocker is None
    return found.delivery.leased or in_lane


def _status(found: FoundMessage) -> State | None:
    if found.receipt:
        return State.EXPIRED if found.receipt.outcome == "expired" else State.SENT
    if found.delivery is None:
        return State.PENDING if found.stream else None
    return state_of(Stored(found.delivery.state), due_passed=found.delivery.due_passed, leased=_taken(found))


def _why(found: FoundMessage) -> Why:
    lease = _lease(found)
    down = tuple(worker for worker in found.workers if worker.broker_down)
    reason = why_not_sent(
        Facts(
            outcome=found.receipt.outcome if found.receipt else None,
            stored=Stored(found.delivery.state) if found.delivery else None,
            streamed=found.stream is not None,
            stream_read=found.stream is not None and found.stream.owner != "",
            due_passed=found.delivery is None or found.delivery.due_passed,
            waits_for_topic=found.delivery is not None and found.delivery.error_code == Reason.TARGET_UNAVAILABLE,
            blocked=found.blocker is not None,
            taken=_taken(found),
            lane_held=found.lane is not None,
            holder_down=lease is not None and any(worker.name == lease.owner for worker in down),
            relays=len(found.workers),
            relays_down=len({worker.name for worker in down}),
        )
    )
    owner = (lease.owner, lease.until) if lease else None
    return Why(reason, explanation_of(reason, found, owner), found.blocker, down)
