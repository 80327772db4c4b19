"""Logs: one structured line for each event, without payloads, headers or raw keys."""

from __future__ import annotations

import hashlib
import logging
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TextIO, assert_never

from postroom.rules.lifecycle import OutcomeCode, State
from postroom.rules.routing import is_routed
from postroom.telemetry.events import (
    DATABASE,
    Added,
    Beat,
    Cleaned,
    Counted,
    Denied,
    Expired,
    Handled,
    HookFailed,
    Keyed,
    LeasesLost,
    Lifecycle,
    NotSettled,
    Phase,
    Postponed,
    Published,
    Raised,
    Reachability,
    Settled,
    StreamChanged,
    StreamRead,
    TargetChanged,
    adapter,
    all_of,
    changes_only,
    listeners,
    one_word,
)
from postroom.telemetry.log_lines import json_lines, text_lines
from postroom.telemetry.saga_events import SagaEvent, StepsEnded
from postroom.telemetry.saga_logs import saga_lines, step_fields
from postroom.telemetry.tracebacks import raised_at, without_credentials, written
from postroom.telemetry.transaction_events import TransactionEvent
from postroom.telemetry.transaction_logs import transaction_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.telemetry.events import Event, Hook

    Line = tuple[str, str, dict[str, Any]]
    """Level, what happened, and the fields."""
    Write = Callable[[str, str, dict[str, Any]], None]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Log levels, with the numbers of Python's logging."""
LONGEST_REASON = 300
_LEVELS = {
    OutcomeCode.SUCCESS: "info",
    OutcomeCode.DEDUP_HIT: "info",
    OutcomeCode.RETRY: "warning",
    OutcomeCode.CONFLICT: "warning",
    OutcomeCode.DEAD: "error",
    OutcomeCode.DB_TIMEOUT: "error",
    OutcomeCode.DB_ERROR: "error",
}
_STATUS = {
    OutcomeCode.SUCCESS: State.SENT,
    OutcomeCode.DEDUP_HIT: State.SENT,
    OutcomeCode.RETRY: State.WAITING,
    OutcomeCode.DEAD: State.DEAD,
}


def structured(
    stream: TextIO | None = None, *, json: bool | None = None, level: str = "info", tracebacks: bool | None = None
) -> Hook:
    """A hook that writes events to a stream (default: standard error), one line each.

    ``json``: write JSON; default: text on a terminal, JSON elsewhere. ``level``: write nothing below it.
    ``tracebacks``: also write those of your own functions that fail, which may quote payloads; default: on a terminal
    only. Credentials in URLs are never written. A stream that cannot be written stops nothing.
    """
    output = sys.stderr if stream is None else stream
    return _Structured(_writer(output, json, level), output.isatty() if tracebacks is None else tracebacks)


class _Structured:
    """Writes events as lines."""

    def __init__(self, write: Write, writes_tracebacks: bool) -> None:  # noqa: FBT001 - a field
        self._write = write
        self.writes_tracebacks = writes_tracebacks
        self._tell = changes_only(self._listen)

    def __call__(self, event: Event) -> None:
        self._tell(event)

    def _listen(self, event: Event) -> None:
        for level, what, fields in _lines(event, self.writes_tracebacks):
            with suppress(OSError, ValueError):  # closed, full, or without a reader
                self._write(level, what, fields)


class Records(logging.Handler):
    """A handler for Python's logging that writes records in the format of `structured`, as the event ``log``."""

    def __init__(self, stream: TextIO | None = None, *, json: bool | None = None, level: str = "info") -> None:
        super().__init__(LEVELS[level])
        self._write = _writer(sys.stderr if stream is None else stream, json, level)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        level = max(
            (name for name in LEVELS if LEVELS[name] <= record.levelno), key=LEVELS.__getitem__, default="debug"
        )
        trace = {} if not record.exc_info or not record.exc_info[1] else {"exception": written(record.exc_info[1])}
        with suppress(OSError, ValueError):
            self._write(level, "log", {"logger": record.name, "message": record.getMessage(), **trace})


def with_tracebacks(hook: Hook | None, wanted: bool | None) -> Hook | None:  # noqa: FBT001 - a setting
    """Add a hook that writes tracebacks to Python's log, if they are wanted and no other hook writes them.

    ``wanted`` None: if standard error is a terminal, unless the hook includes one of `structured`, which has its own
    setting.
    """
    chosen = [one.writes_tracebacks for one in listeners(hook) if isinstance(one, _Structured)] if hook else []
    if wanted is None:
        wanted = not chosen and sys.stderr is not None and sys.stderr.isatty()
    return all_of(hook, _to_pythons_log) if wanted and not any(chosen) else hook


def _to_pythons_log(event: Event) -> None:
    if isinstance(event, Raised):
        _log_traceback(event.function, _raised(event), event.error)
    if isinstance(event, StepsEnded):
        for step in event.steps:
            if step.error is not None:
                _log_traceback(step.step, step_fields(event.saga, step), step.error)


def _log_traceback(function: str, fields: dict[str, Any], error: BaseException) -> None:
    shown = " ".join(f"{name}={value}" for name, value in fields.items())
    logging.getLogger("postroom").warning("%s failed: %s\n%s", function, shown, written(error))


def _lines(event: Event, tracebacks: bool) -> Iterator[Line]:  # noqa: C901, PLR0912, FBT001 - one case for each event
    if isinstance(event, SagaEvent):
        yield from saga_lines(event, tracebacks)
        return
    if isinstance(event, TransactionEvent):
        yield from transaction_lines(event)
        return
    match event:
        case Settled(outcome=OutcomeCode.SUCCESS):
            yield _batch(event)
        case Settled():
            for message in event.messages:
                yield _message(event, message)
        case Reachability():
            yield _reachability(event, tracebacks)
        case Raised():
            trace = {"exception": written(event.error)} if tracebacks else {}
            what = "handler_failed" if event.consumer else "function_failed"
            yield "warning", what, {"function": event.function, **_raised(event), **trace}
        case Denied():
            yield "error", "privilege_missing", {"reason": _one_line(event.reason)}
        case LeasesLost():
            yield "warning", "leases_lost", {"messages": event.messages, "lanes": event.lanes}
        case Lifecycle():
            who = {"consumer": event.consumer} if event.consumer else {}
            yield "info", f"{'consumer' if who else 'relay'}_{event.what}", {**who, "worker": event.worker}
        case Handled(fate="handled" | "skipped"):
            yield _handled_batch(event)
        case Handled():
            for received, outbox_id in zip_longest(event.messages, event.outbox_ids):
                yield _handled(event, received, outbox_id)
        case HookFailed():
            where = {"where": event.where} if event.where else {}
            yield (
                "error",
                "hook_failed",
                {"hook": event.name, "error": one_word(event.reason.partition(":")[0]), **where},
            )
        case Expired():
            for message in event.messages:
                yield "info", "message_expired", {**_named(message), "status": State.EXPIRED.value}
        case NotSettled():
            yield _LEVELS[event.outcome], event.outcome.value, _named(event.message)
        case Cleaned():
            yield "info", "cleaned", asdict(event)
        case Phase():
            took = round(event.seconds * 1000, 1)
            yield "debug", f"batch_{event.name}", {"messages": event.messages, "took_ms": took}
        case TargetChanged():
            yield _target(event, tracebacks)
        case StreamChanged():
            level = "warning" if event.what in {"lost", "dropped", "gave up", "not set up"} else "info"
            detail = {"detail": _one_line(event.detail)} if event.detail else {}
            yield level, f"stream_{event.what.replace(' ', '_')}", {**detail, "worker": event.worker}
        case Added() | Beat() | Counted() | Keyed() | Postponed() | Published() | StreamRead():
            pass  # for metrics and traces only
        case _:
            assert_never(event)


def _reachability(event: Reachability, tracebacks: bool) -> Line:  # noqa: FBT001 - passed on
    """What became unreachable, and why. The reason given by a user's function may quote the payload."""
    is_database = event.what == DATABASE
    name = f"{DATABASE if is_database else 'broker'}_{'reachable' if event.reachable else 'unreachable'}"
    who = {} if is_database else {"adapter": adapter(event.what), **_queue(event.queue)}
    if "://" in event.what:
        who["broker"] = without_credentials(event.what)
    shown = tracebacks or not event.what.startswith("python:")
    why = {"reason": _one_line(event.reason)} if event.reason and shown else {}
    return "info" if event.reachable else "error", name, {**who, **why}


def _target(event: TargetChanged, tracebacks: bool) -> Line:  # noqa: FBT001 - passed on
    """Which topic is concerned, and why; reasons are handled as for brokers."""
    name = "target_available" if event.available else "target_unavailable"
    shown = event.reason and (tracebacks or not event.broker.startswith("python:"))
    fields = {"topic": event.topic, "adapter": adapter(event.broker), **_queue(event.queue)}
    why = {"reason": _one_line(event.reason)} if shown else {}
    return "info" if event.available else "error", name, {**fields, **why}


def _one_line(text: str) -> str:
    return without_credentials(" ".join(text.split()))[:LONGEST_REASON]


def _raised(event: Raised) -> dict[str, Any]:
    fields: dict[str, Any] = {"consumer": event.consumer} if event.consumer else {}
    if len(event.messages) == 1:
        [message] = event.messages
        fields["message_id" if event.consumer else "outbox_id"] = str(message.id)
    else:
        fields["messages"] = len(event.messages)
    fields["topic"] = ",".join(sorted({message.topic for message in event.messages}))
    where = raised_at(event.error)
    return {**fields, "error": type(event.error).__name__, **({"where": where} if where else {})}


def _queue(queue: str) -> dict[str, Any]:
    """The queue, which tells several brokers apart."""
    return {"queue": queue} if is_routed(queue) else {}


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


def _handled(event: Handled, message: Incoming, outbox_id: UUID | None) -> Line:
    fields: dict[str, Any] = {"consumer": event.consumer, "message_id": message.id}
    if outbox_id is not None:
        fields["outbox_id"] = str(outbox_id)
    fields["topic"] = message.topic
    if event.attempts:
        fields["attempts"] = event.attempts
    if event.code:
        fields["reason_code"] = one_word(event.code)
    if event.seconds:
        fields["handler_ms"] = round(event.seconds * 1000, 1)
    level = {"duplicate": "info", "parked": "warning", "dead": "error"}[event.fate]
    return level, f"message_{event.fate}", fields


def _adapter(event: Settled) -> dict[str, Any]:
    """The broker, and how long a failed send took."""
    took = {"send_ms": round(event.seconds * 1000, 1)} if event.seconds else {}
    return {**({"adapter": adapter(event.broker)} if event.broker else {}), **took}


def _named(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"outbox_id": str(message.id), "position": message.position, "topic": message.topic}
    if message.idempotency_key is not None:
        fields["idempotency_key_sha256"] = hashlib.sha256(message.idempotency_key.encode()).hexdigest()[:16]
    return fields


def _latency(messages: Sequence[Message]) -> dict[str, float]:
    """Milliseconds since the message was added; for several, since the oldest."""
    added = min((message.created_at for message in messages if message.created_at), default=None)
    if added is None:
        return {}
    return {"latency_ms": round(max(0.0, (datetime.now(UTC) - added).total_seconds() * 1000), 1)}


def _writer(stream: TextIO, json: bool | None, least: str) -> Write:  # noqa: FBT001 - an option
    write_line = json_lines(stream) if json or (json is None and not stream.isatty()) else text_lines(stream)
    weight = LEVELS[least]

    def write(level: str, what: str, fields: dict[str, Any]) -> None:
        if LEVELS[level] >= weight:
            write_line(level, what, fields)

    return write
