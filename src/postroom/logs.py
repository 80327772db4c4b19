"""Logs: what the relay reports, one structured line an event, without payloads, headers, raw keys or error texts."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, assert_never

from postroom.rules.lifecycle import Outcome, State
from postroom.rules.routing import is_sorted
from postroom.telemetry import (
    DATABASE,
    Beat,
    Cleaned,
    Counted,
    Expired,
    Handled,
    HookFailed,
    Keyed,
    LeasesLost,
    Lifecycle,
    NotSettled,
    Phase,
    Published,
    Reachability,
    Settled,
    adapter,
    changes_only,
    one_word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping, Sequence

    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.telemetry import Event, Hook

    Line = tuple[str, str, dict[str, Any]]
    """Level, what happened, and the fields."""

_LEVELS = {
    Outcome.SUCCESS: "info",
    Outcome.DEDUP_HIT: "info",
    Outcome.RETRY: "warning",
    Outcome.CONFLICT: "warning",
    Outcome.DEAD: "error",
    Outcome.DB_TIMEOUT: "error",
    Outcome.DB_ERROR: "error",
}
_STATUS = {
    Outcome.SUCCESS: State.SENT,
    Outcome.DEDUP_HIT: State.SENT,
    Outcome.RETRY: State.WAITING,
    Outcome.DEAD: State.DEAD,
}


def structured(stream: TextIO | None = None, *, json: bool | None = None) -> Hook:
    """A hook for a relay that writes its events to the stream (standard error), one line each.

    ``json``: lines of JSON; unless given, it is text on a terminal and JSON elsewhere. Of a broker's URL only the
    scheme is written. A stream that cannot be written to any more stops nothing.
    """
    output = sys.stderr if stream is None else stream
    write = _writer(output, json=not output.isatty() if json is None else json)

    def listen(event: Event) -> None:
        for level, what, fields in _lines(event):
            with suppress(OSError, ValueError):  # closed, full, or its reader has gone
                write(level, what, fields)

    return changes_only(listen)


def _lines(event: Event) -> Iterator[Line]:  # noqa: C901, PLR0912 - one case for each event
    match event:
        case Settled(outcome=Outcome.SUCCESS):
            yield _batch(event)
        case Settled():
            for message in event.messages:
                yield _message(event, message)
        case Reachability():
            is_database = event.what == DATABASE
            what = f"{DATABASE if is_database else 'broker'}_{'reachable' if event.reachable else 'unreachable'}"
            fields = {} if is_database else {"adapter": adapter(event.what), **_queue(event.queue)}
            yield "info" if event.reachable else "error", what, fields
        case LeasesLost():
            yield "warning", "leases_lost", {"messages": event.messages, "lanes": event.lanes}
        case Lifecycle():
            who = {"consumer": event.consumer} if event.consumer else {}
            yield "info", f"{'consumer' if who else 'relay'}_{event.what}", {**who, "worker": event.worker}
        case Handled(fate="handled" | "skipped"):
            yield _handled_batch(event)
        case Handled():
            for received in event.messages:
                yield _handled(event, received)
        case HookFailed():
            yield "error", "hook_failed", {"hook": event.name, "error": one_word(event.reason.partition(":")[0])}
        case Expired():
            for message in event.messages:
                yield "info", "message_expired", {**_named(message), "status": State.EXPIRED.value}
        case NotSettled():
            yield _LEVELS[event.outcome], event.outcome.value, _named(event.message)
        case Cleaned():
            yield "info", "cleaned", {"messages": event.messages, "marks": event.marks, "entries": event.entries}
        case Beat() | Counted() | Keyed() | Phase() | Published():
            pass  # figures, for metrics and traces
        case _:
            assert_never(event)


def _queue(queue: str) -> dict[str, Any]:
    """Which of several brokers it is."""
    return {"queue": queue} if is_sorted(queue) else {}


def _batch(event: Settled) -> Line:
    fields: dict[str, Any] = {"status": State.SENT.value, "messages": len(event.messages)}
    return "info", event.outcome.value, {**fields, **_adapter(event), **_latency(event.messages)}


def _message(event: Settled, message: Message) -> Line:
    fields = _named(message)
    if event.outcome in _STATUS:
        fields["status"] = _STATUS[event.outcome].value
    if event.attempts:
        fields["attempts"] = event.attempts
    if event.code:
        fields["reason_code"] = one_word(event.code)
    return _LEVELS.get(event.outcome, "info"), event.outcome.value, {**fields, **_adapter(event), **_latency([message])}


def _handled_batch(event: Handled) -> Line:
    topics = sorted({one.topic for one in event.messages})
    fields = {"consumer": event.consumer, "messages": len(event.messages), "topics": topics}
    return "info", f"message_{event.fate}", {**fields, "handler_ms": round(event.seconds * 1000, 1)}


def _handled(event: Handled, message: Incoming) -> Line:
    fields: dict[str, Any] = {"consumer": event.consumer, "message_id": message.id, "topic": message.topic}
    if event.attempts:
        fields["attempts"] = event.attempts
    if event.code:
        fields["reason_code"] = one_word(event.code)
    if event.seconds:
        fields["handler_ms"] = round(event.seconds * 1000, 1)
    level = {"duplicate": "info", "parked": "warning", "dead": "error"}[event.fate]
    return level, f"message_{event.fate}", fields


def _adapter(event: Settled) -> dict[str, Any]:
    """Where it went, and how long the send took, of one that failed."""
    took = {"send_ms": round(event.seconds * 1000, 1)} if event.seconds else {}
    return {**({"adapter": adapter(event.broker)} if event.broker else {}), **took}


def _named(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"outbox_id": str(message.id), "position": message.position, "topic": message.topic}
    if message.idempotency_key is not None:
        fields["idempotency_key_sha256"] = hashlib.sha256(message.idempotency_key.encode()).hexdigest()[:16]
    return fields


def _latency(messages: Sequence[Message]) -> dict[str, float]:
    """Milliseconds since the message was added; of several, the oldest."""
    added = min((message.created_at for message in messages if message.created_at), default=None)
    if added is None:
        return {}
    return {"latency_ms": round(max(0.0, (datetime.now(UTC) - added).total_seconds() * 1000), 1)}


def _writer(stream: TextIO, *, json: bool) -> Callable[[str, str, dict[str, Any]], None]:
    import structlog  # takes a while, and only a relay needs it

    colours = stream.isatty() and not os.environ.get("NO_COLOR")
    text = structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, repr_native_str=True)
    logger = structlog.wrap_logger(  # all of it given here: the application's own configuration stays as it is
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _head_first,
            structlog.processors.JSONRenderer() if json else text,
        ],
        wrapper_class=structlog.BoundLoggerBase,
        context_class=dict,
    )

    def write(level: str, what: str, fields: dict[str, Any]) -> None:
        logger._proxy_to_logger(level, what, **fields)  # noqa: SLF001 - the level is a value here, not a method

    return write


def _head_first(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {name: line[name] for name in ("timestamp", "level", "event")} | dict(line)
