"""The values that are stored for instances of sagas, and what operations on them return."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TypeAlias
from uuid import UUID

import msgspec

from postroom.message import Message
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.store.outbox.leases import Claimed


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """What is on record for a step, in one direction."""

    outcome: StepOutcome
    attempts: int = 1
    result: bytes | None = None
    """What its function returned, as JSON."""
    data: bytes | None = None
    """The instance's data, if the function changed them."""
    waited: float = 0.0
    """Seconds since it began, by the database's clock, at the moment of reading."""
    error_code: str = ""
    error_message: str = ""


class Instance(msgspec.Struct, gc=False):
    """An instance of a saga, as it was read."""

    position: int
    name: str
    id: str
    direction: Direction
    outcome: SagaOutcome
    remaining: float | None
    """Seconds to the deadline, by the database's clock, at the moment of reading; None without a deadline."""
    age: float
    """Seconds since it was started."""
    rows: dict[tuple[Direction, str], StepRow]
    """In the order in which they ended."""
    failed_step: str = ""
    error_code: str = ""
    error_message: str = ""
    aborted_by: str = ""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A row to be written for a step. One that waits (`StepOutcome.WAITING`) is replaced."""

    direction: Direction
    step: str
    outcome: StepOutcome
    seconds: float = 0.0
    """How long it ran."""
    result: bytes | None = None
    data: bytes | None = None
    error_code: str = ""
    error_message: str = ""
    worker: str = ""


class Logged(Enum):
    """What became of entries."""

    WRITTEN = auto()
    LEASE_LOST = auto()
    """Somebody else has the delivery: roll back."""
    DONE_BEFORE = auto()
    """A step is already on record: roll back, and read the instance again."""
    LOCKED = auto()
    """Somebody else has locked the delivery for now. Only where many are written, so that none waits for another."""


class Locked(Enum):
    """Somebody else has locked the delivery for now. Nothing is done: come again."""

    LOCKED = auto()


LOCKED = Locked.LOCKED


class LogItem(msgspec.Struct, frozen=True, gc=False):
    """Entries of one instance, to be written in one statement with those of others."""

    claimed: Claimed
    entries: Sequence[Entry]
    end: SagaOutcome | None = None
    tell: Message | None = None
    keeps_attempts: bool = False
    """Others of its group are not done: their attempts go on counting."""


class Event(msgspec.Struct, frozen=True):
    """An event that an instance has received and not yet taken."""

    message_id: UUID
    name: str
    payload: bytes


class Lost(Enum):
    """The lease is lost."""

    LOST = auto()


LOST = Lost.LOST
Waiting: TypeAlias = Lost | Event | None
"""What `SagaStore.wait` found: an event, and the lease is kept; or None, and the lease is given up until it is due. If
`due_in` is 0 or less it only looks: None then means that there is no event, and the lease is kept."""


class Received(Enum):
    """What became of a signal."""

    DELIVERED = auto()
    UNKNOWN = auto()
    ENDED = auto()
    LEASE_LOST = auto()


class Aborted(Enum):
    """What became of the wish to abort an instance. Only the first has written anything."""

    ABORTED = auto()
    UNKNOWN = auto()
    """There is no such instance, or it was removed after its end."""
    ENDED = auto()
    LOST = auto()
    """It is open, and somebody has deleted its delivery."""
    ALREADY_BACK = auto()
    """It is being compensated."""
    PAST_PIVOT = auto()
    """It only goes forward: its pivot is passed, or may have happened and nobody has parked it."""
