"""The values that the lease protocol passes around: claims, lanes, and how a delivery was settled."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from postroom.message import Message
from postroom.rules.lifecycle import State, Transition
from postroom.rules.ordering import NO_LANE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

TOKEN_BITS = 62


def new_token() -> int:
    """A fresh claim token. Random, so that a worker cannot settle even its own earlier, lost claim."""
    return secrets.randbits(TOKEN_BITS) or 1


DEATHS = frozenset(one for one in Transition if State.SENDING in one.sources and one.target is State.DEAD)

Lease = tuple[int, int]
"""Identifies a lease: the position or lane that it is on, and its token."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A message under a lease: its own, or its lane's."""

    position: int
    lane: int
    token: int
    attempts: int
    claims: int
    message: Message
    size: int = 0
    """Bytes of payload and headers."""

    @property
    def ordered(self) -> bool:
        return self.lane != NO_LANE

    @property
    def lease(self) -> Lease:
        return self.position, self.token


class Lane(msgspec.Struct, frozen=True, gc=False):
    """A lane under a lease. `interrupted`: the last holder's lease ran out, so what it was sending is suspect."""

    number: int
    token: int
    interrupted: bool = False

    @property
    def lease(self) -> Lease:
        return self.number, self.token


class Sent(msgspec.Struct, frozen=True, gc=False):
    """The broker has it; `answer` is what the broker said (offset, sequence, id)."""

    transition: ClassVar[Transition] = Transition.CONFIRM
    claimed: Claimed
    answer: str | None = None
    dedup: int | None = None


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The same content went to the same topic before; `answer` is what the broker said then."""

    transition: ClassVar[Transition] = Transition.DEDUPLICATE
    claimed: Claimed
    answer: str | None = None


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Its expiry passed before it was sent. It is no dead letter, and blocks nothing."""

    transition: ClassVar[Transition] = Transition.EXPIRE
    claimed: Claimed


class Retry(msgspec.Struct, frozen=True, gc=False):
    """The send failed; due again after `delay` seconds of the database's clock."""

    transition: ClassVar[Transition] = Transition.FAIL
    claimed: Claimed
    delay: float
    code: str
    message: str


class Postponed(msgspec.Struct, frozen=True, gc=False):
    """Not attempted: its topic takes no messages, or others would wait behind it. Due after `delay` seconds.

    What waits for its topic is due when that is back.
    """

    transition: ClassVar[Transition] = Transition.POSTPONE
    claimed: Claimed
    delay: float
    code: str
    message: str


class Dead(msgspec.Struct, frozen=True, gc=False):
    """Not sent again unless an operator requeues it. `attempted`: a send failed, which counts as an attempt."""

    claimed: Claimed
    code: str
    message: str
    attempted: bool = True
    transition: Transition = Transition.REJECT
    """Why: one of those that lead from sending to dead."""

    def __post_init__(self) -> None:
        if self.transition not in DEATHS:
            raise ValueError(f"{self.transition.name} does not lead from sending to dead")


class GivenBack(msgspec.Struct, frozen=True, gc=False):
    """Not sent: the lease ends now, and the claim does not count. A message in a lane has no lease, and stays."""

    transition: ClassVar[Transition] = Transition.GIVE_BACK
    claimed: Claimed


class Rerouted(msgspec.Struct, frozen=True, gc=False):
    """Not sent, because it belongs to another queue: moved there, otherwise as if given back."""

    transition: ClassVar[Transition] = Transition.GIVE_BACK
    claimed: Claimed
    queue: str


Receipt = Sent | Duplicate | Expired
Failure = Retry | Postponed | Dead
Settlement = Receipt | Failure | GivenBack | Rerouted


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim returned: messages to send, in order, and what it settled instead of handing out."""

    messages: list[Claimed]
    settled: list[Settlement]
    found: int
    """How many deliveries were due and free, handed out or not. Zero: there was nothing to do."""
    alone: bool = False
    """Workers may have died of the one message in it: send nothing else along with it."""
    kept_back: Sequence[Claimed] = ()
    """Lanes only: read, but neither handed out nor settled. The next read must find them."""
    cut_short: bool = False
    """Lanes only: the read stopped at a limit, so there may be more."""
    freed: Sequence[int] = ()
    """Lanes where something was freed that reads may have passed: read again from the beginning."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal did."""

    leases: set[Lease]
    """Extended, on messages."""
    lanes: set[Lease]
    """Extended, on lanes."""
    lost: list[Claimed]
    lost_lanes: list[Lane]


class Ages(NamedTuple):
    """Transaction numbers: of one that begins now, and of the oldest that has not ended."""

    youngest: int
    oldest: int
    open: tuple[int, ...] = ()
    """All that have begun and not ended."""
    end: int = 0
    """The lowest that had not begun."""

    def oldest_without(self, some: Collection[int]) -> int:
        """The oldest that has not ended, leaving these out of account."""
        return min((one for one in self.open if one not in some), default=self.end) if some else self.oldest


class Cursors(NamedTuple):
    """Behind which positions reads of lanes start, by lane."""

    after: Mapping[int, int]
    ahead: Mapping[int, int] = {}
    """Where they start instead, if these transactions are all open: until one ends, nothing new appears before."""
    while_open: Collection[int] = ()


NO_AGES = Ages(0, 0)
"""With one writer at a time, transactions commit in the order of their positions: nothing can come late."""
UNKNOWN_AGES = Ages(1, 0)
"""The database cannot tell: something may always come late."""


class Deduplicated(NamedTuple):
    """A batch after deduplication."""

    send: list[Claimed]
    duplicates: list[Duplicate]
    """Settled: the same content was sent before."""
    later: list[Claimed]
    """Given back: the same content is in flight, or stands before it."""
    lost: list[Claimed]
