"""Telemetry: everything that the relay reports goes through one hook, as one of these events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.rules.lifecycle import Outcome

DATABASE = "database"


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch went through a phase: ``claim``, ``send`` or ``commit``."""

    name: str
    messages: int
    seconds: float


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


@dataclass(frozen=True, slots=True)
class NotSettled:
    """The database answers, but refuses to write what became of a message: it will be sent again."""

    message: Message
    reason: str


Event = Expired | Handled | HookFailed | LeasesLost | Lifecycle | NotSettled | Phase | Reachability | Settled
Hook = Callable[[Event], None]


def all_of(*hooks: Hook | None) -> Hook:
    """One hook for several listeners. One that raises is reported to Python's own log, and the others go on."""
    listening = [hook for hook in hooks if hook is not None]

    def call_all(event: Event) -> None:
        for hook in listening:
            try:
                hook(event)
            except Exception as error:  # noqa: BLE001 - a listener must not be able to stop the relay
                name = getattr(hook, "__qualname__", repr(hook))
                logging.getLogger("postroom").warning("the hook %s raised %s", name, type(error).__name__)

    return call_all


def changes_only(hook: Hook) -> Hook:
    """A hook that says once that something went away and once that it is back, however many find out."""
    reachable: dict[tuple[str, str], bool] = {}

    def tell(event: Event) -> None:
        if isinstance(event, Reachability):
            place = event.what, event.queue
            if reachable.get(place, True) == event.reachable:
                return
            reachable[place] = event.reachable
        hook(event)

    return tell
