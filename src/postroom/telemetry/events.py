"""Events: everything that relays, consumers and the middleware report, passed to one hook."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.event_values import EventValue
from postroom.telemetry.saga_events import SagaEvent, SagaStranded
from postroom.telemetry.tracebacks import raised_at
from postroom.telemetry.transaction_events import TransactionEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from postroom.incoming import Incoming
    from postroom.message import Message

DATABASE = "database"
"""The name of the database in `Reachability`, where others are brokers."""
NO_BROKER = "nowhere"
"""The broker name for messages that have no broker."""
UNREACHED = "UNREACHED"
"""Code of a message that was not sent because the broker cannot be reached."""
NOT_TRIED = "NOT_TRIED"
"""Code of a message that was not sent because one before it failed, or its turn did not come."""
UNREADABLE = "OTHER"
"""Replaces a reason code that is not one word: a sentence may quote a payload."""
_ONE_WORD = re.compile(r"[\w.-]{1,64}")


class Added(EventValue, frozen=True):
    """An outbox has written messages in its caller's transaction, which may still be rolled back."""

    messages: Sequence[Message]
    queue: str


class Phase(EventValue, frozen=True):
    """A batch went through a phase: ``claim``, ``send`` or ``commit``."""

    name: str
    messages: int
    seconds: float
    taken_over: int = 0
    """For a claim: messages whose earlier lease ended without a settlement."""
    queue: str = ""


class Published(EventValue, frozen=True):
    """A call of the broker has just ended."""

    broker: str
    messages: Sequence[Message]
    seconds: float
    failed: Mapping[int, str]
    """The messages that were not sent, by index: a reason code, `UNREACHED` or `NOT_TRIED`."""


class Settled(EventValue, frozen=True):
    """The outcome of messages, as recorded in the database. `code` is the reason if they failed."""

    outcome: OutcomeCode
    messages: Sequence[Message]
    attempts: int = 0
    code: str = ""
    detail: str = ""
    """The text of the broker or function. It may quote the payload: not for logs."""
    broker: str = ""
    seconds: float = 0.0
    """How long the send took, if it failed."""
    queue: str = ""


class Expired(EventValue, frozen=True):
    """Messages that expired before they were sent."""

    messages: Sequence[Message]
    queue: str = ""


class LeasesLost(EventValue, frozen=True):
    """Leases ended, or could not be renewed in time, while messages were in flight."""

    messages: int
    lanes: int
    queue: str = ""


class Reachability(EventValue, frozen=True):
    """The broker or the database became unreachable (`reachable` false), or is back."""

    what: str
    reachable: bool
    reason: str = ""
    queue: str = ""
    """For a broker: the queue whose messages wait for it."""


class TargetChanged(EventValue, frozen=True):
    """A topic takes no messages (`available` false), while others may; or it takes them again."""

    broker: str
    topic: str
    available: bool
    reason: str = ""
    queue: str = ""


class Postponed(EventValue, frozen=True):
    """Messages wait because their topics take none; this does not count as an attempt."""

    messages: int
    queue: str = ""


class Denied(EventValue, frozen=True):
    """The database user lacks a privilege. What needs it is retried, and reported once."""

    reason: str


class Beat(EventValue, frozen=True):
    """A relay's heartbeat for one of its queues, even if the database did not answer."""

    worker: str
    queue: str
    reached: bool
    """Whether the database has recorded it. If not, `alive` is unknown."""
    alive: int
    """Relays alive for the queue, including this one."""
    in_flight: int
    broker: str
    """Empty if there is none: parked messages go to handlers."""
    broker_reachable: bool
    targets_down: int = 0
    """Topics that take no messages, as far as this relay knows."""


class StreamRead(EventValue, frozen=True):
    """The relay that reads the stream says how far it is, at each of its heartbeats."""

    worker: str
    held_bytes: int
    """Write-ahead log that the server keeps for the slot."""
    behind: float
    """Seconds since what is being sent now was committed; 0 if nothing is."""


STREAM_CHANGES = ("leads", "left", "lost", "created", "dropped", "swept", "closes", "gave up", "not set up")


class StreamChanged(EventValue, frozen=True):
    """Something happened to the stream. `what` is one of `STREAM_CHANGES`."""

    worker: str
    what: str
    detail: str = ""


class Backlog(EventValue, frozen=True):
    """The messages that wait in one queue. Counts stop at a limit, see `postroom.store.admin.backlog`."""

    pending: int = 0
    """Due, or being sent."""
    waiting: int = 0
    """Scheduled, or waiting for their next attempt."""
    dead: int = 0
    oldest_pending_seconds: float = 0.0
    held_keys: int = 0
    """Keys on which everything waits, because a message of theirs is dead."""


class Counted(EventValue, frozen=True):
    """Unsent messages were counted, by queue. Empty queues are left out."""

    queues: Mapping[str, Backlog]
    sagas: Mapping[str, Mapping[str, int]] = msgspec.field(default_factory=dict)
    """Sagas that have not ended, by name and state."""
    held_for_debezium: int | None = None
    """Bytes of write-ahead log that the server keeps for Debezium, if that reads the outbox."""


KEYED = ("run", "taken_over", "replayed", "in_progress", "conflict", "unavailable", "unrecorded")
"""The outcomes of a keyed request, see `Keyed`."""


class Keyed(EventValue, frozen=True):
    """The outcome of an HTTP request with an idempotency key: one of `KEYED`.

    It runs, for the first time or by taking over; or the middleware answers it. A request that ran may also be reported
    as unrecorded: its response could not be written.
    """

    outcome: str


@dataclass(frozen=True, slots=True)  # as all results of `Admin`
class Cleaned:
    """Old messages, inbox marks, ledger entries, two-phase commits, audit entries and counters were removed."""

    messages: int
    marks: int
    entries: int
    transactions: int = 0
    audit: int = 0
    counters: int = 0
    """Of what went through, by the minute."""


class Handled(EventValue, frozen=True):
    """The outcome of received messages: handled, duplicate, parked, dead or skipped."""

    consumer: str
    fate: str
    messages: Sequence[Incoming]
    code: str = ""
    """The reason, if the handler failed."""
    seconds: float = 0.0
    """How long the handler took."""
    attempts: int = 0
    """Failed attempts so far, if the message was parked before."""
    outbox_ids: Sequence[UUID] = ()
    """For parked and dead messages: their ids in the service's own outbox."""


class Raised(EventValue, frozen=True):
    """A user's function failed: a consumer's handler, or a function that acts as a broker.

    It raised an exception or timed out. The outcome of its messages is another event.
    """

    hidden = frozenset({"error"})

    function: str
    messages: Sequence[Incoming | Message]
    error: BaseException
    """Its text may quote the payload: not for logs, unless tracebacks are enabled."""
    consumer: str = ""
    """The consumer, if it is a handler."""


class Lifecycle(EventValue, frozen=True):
    """A relay, or the consumer with this name, started or stopped."""

    worker: str
    what: str
    consumer: str = ""


class HookFailed(EventValue, frozen=True):
    """A user's callback raised an exception."""

    name: str
    reason: str
    where: str = ""
    """File and line in the user's code."""


class NotSettled(EventValue, frozen=True):
    """The database answers, but does not record a message's outcome: it will be sent again."""

    message: Message
    reason: str
    outcome: OutcomeCode = OutcomeCode.DB_ERROR
    """Whether the database refused, or took too long (`DB_TIMEOUT`)."""
    queue: str = ""


Event = (
    Added
    | Beat
    | Cleaned
    | Counted
    | Denied
    | Expired
    | Handled
    | HookFailed
    | Keyed
    | LeasesLost
    | Lifecycle
    | NotSettled
    | Phase
    | Postponed
    | Published
    | Raised
    | Reachability
    | SagaEvent
    | Settled
    | StreamChanged
    | StreamRead
    | TargetChanged
    | TransactionEvent
)
"""Everything that a hook can receive."""
Hook = Callable[[Event], None]
"""Called with every event. If it has a true attribute ``wants_counts``, the backlog is counted for it at intervals
(`Counted`); if it has an attribute ``tracer``, consumers use that for their spans."""


class _All:
    """Several hooks as one."""

    def __init__(self, listeners: Sequence[Hook]) -> None:
        self.listeners = listeners

    def __call__(self, event: Event) -> None:
        for hook in self.listeners:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a hook must not be able to stop the relay
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                logging.getLogger("postroom").warning(
                    "the hook %s raised %s (%s)", name, type(error).__name__, raised_at(error)
                )


def all_of(*hooks: Hook | None) -> Hook:
    """Combine hooks into one. If one raises, that is reported to Python's log, and the others are still called."""
    return _All([one for hook in hooks if hook is not None for one in listeners(hook)])


def listeners(hook: Hook) -> Sequence[Hook]:
    """The hooks that `all_of` combined, or the hook itself."""
    return hook.listeners if isinstance(hook, _All) else [hook]


def wants_counts(hook: Hook) -> bool:
    """Whether a hook needs counts, which take a query."""
    return any(getattr(one, "wants_counts", False) for one in listeners(hook))


def adapter(broker: str) -> str:
    """A broker's name, or the scheme of its URL: the rest may hold a password."""
    return broker.partition("://")[0].rstrip(":")


def one_word(code: str) -> str:
    """A reason code or an exception's name; anything longer than one word is replaced."""
    return str(code) if _ONE_WORD.fullmatch(code) else UNREADABLE  # str: an enum member as its value


def changes_only(hook: Hook) -> Hook:
    """Wrap a hook so that each outage and each recovery is reported once, however many parts notice it.

    The same for each piece of code that sagas miss, however many are stranded.
    """
    reachable: dict[tuple[str, str], bool] = {}
    denied: set[str] = set()
    stranded: set[tuple[str, str, str]] = set()

    def tell(event: Event) -> None:
        if isinstance(event, Reachability):
            place = event.what, event.queue
            if reachable.get(place, True) == event.reachable:
                return
            reachable[place] = event.reachable
        if isinstance(event, Denied):
            if event.reason in denied:
                return
            denied.add(event.reason)
        if isinstance(event, SagaStranded):
            missing = event.saga, event.step, event.code
            if missing in stranded:
                return
            stranded.add(missing)
        hook(event)

    return tell
