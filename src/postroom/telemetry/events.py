"""Telemetry: everything that relays and consumers report goes through one hook, as one of these events."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Outcome
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from postroom.incoming import Incoming
    from postroom.message import Message

DATABASE = "database"
NO_BROKER = "nowhere"
"""The name of the broker of messages that have none."""
UNREACHED = "UNREACHED"
"""Of a message that was not sent: the broker cannot be reached."""
NOT_TRIED = "NOT_TRIED"
"""Of a message that was not sent: one before it had failed, or its turn did not come."""
UNREADABLE = "OTHER"
"""Stands for a reason code that is none: a sentence may quote a payload."""
_ONE_WORD = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch went through a phase: ``claim``, ``send`` or ``commit``."""

    name: str
    messages: int
    seconds: float
    taken_over: int = 0
    """Of a claim, how many had been claimed before, under a lease that ended without a settlement."""


@dataclass(frozen=True, slots=True)
class Published:
    """A call of the broker has ended just now."""

    broker: str
    messages: Sequence[Message]
    seconds: float
    failed: Mapping[int, str]
    """Why those did not go that did not, by their index: a reason code, `UNREACHED` or `NOT_TRIED`."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of messages, as the database has it. `code` is the reason where they failed."""

    outcome: Outcome
    messages: Sequence[Message]
    attempts: int = 0
    code: str = ""
    detail: str = ""
    """What the broker or the function said. May quote the payload: not for logs."""
    broker: str = ""
    seconds: float = 0.0
    """How long the send took, of one that failed."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Messages whose expiry passed before they were sent."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class LeasesLost:
    """Leases ended, or could not be renewed in time, while messages were in flight."""

    messages: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Reachability:
    """The broker or the database went away (`reachable` false) or came back."""

    what: str
    reachable: bool
    reason: str = ""
    queue: str = ""
    """Of a broker, the queue whose messages wait for it."""


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """A topic takes no messages (`available` false), while others may; or takes them again."""

    broker: str
    topic: str
    available: bool
    reason: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Postponed:
    """Messages wait, because their topics take none: not tried, or in vain, which was no attempt."""

    messages: int


@dataclass(frozen=True, slots=True)
class Denied:
    """The database's user lacks a privilege. What needs it is tried again and again, and told of once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A relay's heart has beaten for one of its queues, be it in vain because the database is away."""

    worker: str
    queue: str
    reached: bool
    """Whether the database has written it down. Otherwise `alive` is not known."""
    alive: int
    """Relays of the queue that are alive, this one included."""
    in_flight: int
    broker: str
    """Empty where there is none: what is parked goes to handlers."""
    broker_reachable: bool
    targets_down: int = 0
    """Topics that take no messages, as far as this relay knows."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in one queue. Counts stop at a limit, see `postroom.store.admin.backlog`."""

    pending: int = 0
    """To be sent now, or being sent."""
    waiting: int = 0
    """For their time, or for their next try."""
    dead: int = 0
    oldest_pending_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The messages that are not sent were counted, by queue. Queues with none are left out."""

    queues: Mapping[str, Backlog]


KEYED = ("run", "taken_over", "replayed", "in_progress", "conflict", "unavailable", "unrecorded")
"""What can become of a keyed request, see `Keyed`."""


@dataclass(frozen=True, slots=True)
class Keyed:
    """What became of an HTTP request with an idempotency key: one of `KEYED`.

    It runs, for the first time or as one that takes over; or it is answered by the middleware. One that ran may in the
    end also be unrecorded: its response could not be written.
    """

    outcome: str


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was old and done was removed: messages, inbox marks and ledger entries."""

    messages: int
    marks: int
    entries: int


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of received messages: handled, duplicate, parked, dead or skipped."""

    consumer: str
    fate: str
    messages: Sequence[Incoming]
    code: str = ""
    """The reason, where the handler failed."""
    seconds: float = 0.0
    """How long the handler took."""
    attempts: int = 0
    """Failed ones so far, of a message that was parked before."""
    outbox_ids: Sequence[UUID] = ()
    """Of parked and dead ones, the ids by which the service's own outbox has them."""


@dataclass(frozen=True, slots=True)
class Raised:
    """A function of the user's failed: a consumer's handler, or one that stands for a broker.

    It raised, or did not end in time. What becomes of its messages is another event.
    """

    function: str
    messages: Sequence[Incoming | Message]
    error: BaseException = field(repr=False)
    """Its text may quote the payload: not for logs, unless tracebacks are asked for."""
    consumer: str = ""
    """Whose handler it is."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """A relay, or the consumer of this name, started or stopped."""

    worker: str
    what: str
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A function of the user's raised an exception where it was told of something."""

    name: str
    reason: str
    where: str = ""
    """File and line in the user's code."""


@dataclass(frozen=True, slots=True)
class NotSettled:
    """The database answers, but does not write what became of a message: it will be sent again."""

    message: Message
    reason: str
    outcome: Outcome = Outcome.DB_ERROR
    """Whether it refused, or did not come to an end in time (`DB_TIMEOUT`)."""


Event = (
    Beat
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
    | Settled
    | TargetChanged
)
Hook = Callable[[Event], None]
"""A listener. One with a true attribute ``wants_counts`` has the backlog counted for it (`Counted`), now and then; one
with an attribute ``tracer`` gives consumers the tracer for their spans."""


class _All:
    """Several listeners as one."""

    def __init__(self, listeners: Sequence[Hook]) -> None:
        self.listeners = listeners

    def __call__(self, event: Event) -> None:
        for hook in self.listeners:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a listener must not be able to stop the relay
                name = getattr(hook, "__qualname__", type(hook).__qualname__)
                logging.getLogger("postroom").warning(
                    "the hook %s raised %s (%s)", name, type(error).__name__, raised_at(error)
                )


def all_of(*hooks: Hook | None) -> Hook:
    """One hook for several listeners. One that raises is reported to Python's own log, and the others go on."""
    return _All([one for hook in hooks if hook is not None for one in listeners(hook)])


def listeners(hook: Hook) -> Sequence[Hook]:
    """Those that a hook consists of: itself, unless `all_of` has made it."""
    return hook.listeners if isinstance(hook, _All) else [hook]


def wants_counts(hook: Hook) -> bool:
    """Whether somebody listens for what only a query can tell."""
    return any(getattr(one, "wants_counts", False) for one in listeners(hook))


def adapter(broker: str) -> str:
    """A broker's name, or the scheme of its URL: what comes after may hold a password."""
    return broker.partition("://")[0].rstrip(":")


def one_word(code: str) -> str:
    """A reason code or the name of an exception; what is not one word is not to be shown."""
    return str(code) if _ONE_WORD.fullmatch(code) else UNREADABLE  # str: of an enum's member, its value


def changes_only(hook: Hook) -> Hook:
    """A hook that says once that something went away and once that it is back, however many find out."""
    reachable: dict[tuple[str, str], bool] = {}
    denied: set[str] = set()

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
        hook(event)

    return tell
