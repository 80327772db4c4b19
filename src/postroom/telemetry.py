"""Telemetry: everything that the relay reports goes through one hook, as one of these events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message
    from postroom.rules.lifecycle import Outcome


@dataclass(frozen=True, slots=True)
class Phase:
    """A batch went through a phase: ``claim``, ``send`` or ``commit``."""

    name: str
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of messages. `code` is the reason where they failed."""

    outcome: Outcome
    messages: Sequence[Message]
    attempts: int = 0
    code: str = ""
    detail: str = ""


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


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The relay started or stopped."""

    worker: str
    what: str


@dataclass(frozen=True, slots=True)
class HookFailed:
    """A function of the user's raised an exception where it was told of something."""

    name: str
    reason: str


Event = HookFailed | Phase | Settled | LeasesLost | Reachability | Lifecycle
Hook = Callable[[Event], None]


def silent(event: Event) -> None:
    """A hook for who does not listen."""
    del event


def all_of(*hooks: Hook) -> Hook:
    """One hook for several listeners."""

    def call_all(event: Event) -> None:
        for hook in hooks:
            hook(event)

    return call_all
