"""The life of a message: its states, the transitions between them, and claims.

Almost nothing of it is stored. A delivery row keeps one of four numbers (`Stored`);
whether it is pending, being sent or waiting follows from the clock and its lease.

    (nothing) ──ADD──────► pending ──CLAIM──► sending ──CONFIRM, DEDUPLICATE──► sent
    (nothing) ──SCHEDULE─► waiting            sending ──FAIL, POSTPONE, WAIT──► waiting
    waiting ──COME_DUE───► pending            sending ──GIVE_BACK, LOSE_LEASE──► pending
    dead ──REQUEUE───────► pending            sending ──EXHAUST, REJECT, …──► dead
    dead ──DISCARD───────► (nothing)          pending, waiting, sending ──EXPIRE──► expired
    sent, expired ──CLEAN_UP──► (nothing)     pending, waiting ──CANCEL──► (nothing)
"""

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto
from typing import assert_never

from postroom.rules.ordering import Order


class State(StrEnum):
    """What a message is, in the words that every view, command and page uses."""

    PENDING = "pending"
    SENDING = "sending"
    WAITING = "waiting"
    SENT = "sent"
    DEAD = "dead"
    EXPIRED = "expired"


class Stored(IntEnum):
    """The number in the delivery row; the tables depend on these values."""

    READY = 0
    """Deliverable now, or leased: which of the two is never stored."""
    SCHEDULED = 1
    """Not before its due time; holds nobody back."""
    RETRY = 2
    """Failed and due again later; holds back what follows on its key."""
    DEAD = 3


class OutcomeCode(StrEnum):
    """What became of one try to deliver one message; stable names for logs and metrics."""

    SUCCESS = "outbox_flush_success"
    RETRY = "outbox_flush_retry"
    DEAD = "outbox_flush_dead"
    CONFLICT = "outbox_flush_conflict"
    DEDUP_HIT = "outbox_flush_dedup_hit"
    DB_TIMEOUT = "outbox_flush_db_timeout"
    DB_ERROR = "outbox_flush_db_error"


def status(stored: Stored, *, due_passed: bool, leased: bool) -> State:
    """Return the state that people see for a delivery row.

    `leased` means a live lease on the row, or on its lane with the row already read by
    the lane's holder. It only counts for rows that are ready: a row waiting in a leased
    lane is not being sent. Messages without a delivery row are settled; their receipt
    says how.
    """
    match stored:
        case Stored.READY:
            return State.SENDING if leased else State.PENDING
        case Stored.SCHEDULED | Stored.RETRY:
            return State.PENDING if due_passed else State.WAITING
        case Stored.DEAD:
            return State.DEAD
        case _:
            assert_never(stored)


def states_of(stored: Stored) -> set[State]:
    """Return every state that a delivery row with this number can show, by its due time and its lease."""
    either = (False, True)
    return {status(stored, due_passed=due_passed, leased=leased) for due_passed in either for leased in either}


def holding_states(order: Order) -> tuple[Stored, ...]:
    """Return the numbers of deliveries that hold back what follows on their key.

    What is scheduled never does, what waits for its retry always does.
    """
    match order:
        case Order.HOLD:
            return Stored.RETRY, Stored.DEAD
        case Order.SKIP:
            return (Stored.RETRY,)
        case _:
            assert_never(order)


_NOTHING: frozenset[State | None] = frozenset({None})
_PENDING: frozenset[State | None] = frozenset({State.PENDING})
_SENDING: frozenset[State | None] = frozenset({State.SENDING})
_WAITING: frozenset[State | None] = frozenset({State.WAITING})
_DEAD: frozenset[State | None] = frozenset({State.DEAD})
_UNSETTLED: frozenset[State | None] = _PENDING | _SENDING | _WAITING
_SETTLED: frozenset[State | None] = frozenset({State.SENT, State.EXPIRED})


class Transition(Enum):
    """The transition table: one row for each thing that can happen to a message.

    `sources` are the states that it applies to, `target` the state it leads to; `None`
    stands for a message that does not exist, before it is added and after it is removed.
    The SQL of every settlement and of every act is built from this table: `stored` are the
    numbers of the delivery rows that it applies to, `becomes` is the number that it
    writes, or `None` where it leaves no row.
    """

    ADD = "recorded, to be sent at once", _NOTHING, State.PENDING, Stored.READY
    SCHEDULE = "recorded, to be sent no earlier than a given time", _NOTHING, State.WAITING, Stored.SCHEDULED
    COME_DUE = "it is due now", _WAITING, State.PENDING, Stored.READY
    CLAIM = "a worker has taken a lease on it", _PENDING, State.SENDING, Stored.READY
    CONFIRM = "the broker has it", _SENDING, State.SENT, None
    DEDUPLICATE = "the same content was sent to its target before", _SENDING, State.SENT, None
    FAIL = "a send failed and will be retried", _SENDING, State.WAITING, Stored.RETRY
    POSTPONE = "its topic takes no messages, so it waits without being tried", _SENDING, State.WAITING, Stored.RETRY
    WAIT = "a saga waits for an event or a time", _SENDING, State.WAITING, Stored.SCHEDULED
    EXHAUST = "a send failed and no attempt is left", _SENDING, State.DEAD, Stored.DEAD
    REJECT = "a send failed in a way that no retry can fix", _SENDING, State.DEAD, Stored.DEAD
    ABANDON = "claimed too often without ever being settled", _SENDING, State.DEAD, Stored.DEAD
    ORPHAN = "the delivery has no message", _SENDING, State.DEAD, Stored.DEAD
    GIVE_BACK = "the worker released it unsent", _SENDING, State.PENDING, Stored.READY
    LOSE_LEASE = "the lease ended before the worker settled it", _SENDING, State.PENDING, Stored.READY
    EXPIRE = "its expiry passed before it was sent", _UNSETTLED, State.EXPIRED, None
    # Due at once, and still before what it holds back on its key.
    REQUEUE = "an operator requeued it", _DEAD, State.PENDING, Stored.RETRY
    DISCARD = "an operator discarded it", _DEAD, None, None
    CANCEL = "an operator cancelled it", _PENDING | _WAITING, None, None
    CLEAN_UP = "retention removed it", _SETTLED, None, None

    def __init__(
        self, meaning: str, sources: frozenset[State | None], target: State | None, becomes: Stored | None
    ) -> None:
        self.meaning = meaning
        self.sources = sources
        self.target = target
        self.becomes = becomes
        self.stored = tuple(stored for stored in Stored if not sources.isdisjoint(states_of(stored)))


class Handling(Enum):
    """How to treat a claimed message, judged by how often it has been claimed."""

    NORMAL = auto()
    ALONE = auto()
    """A suspect: workers may have died of it, so nothing else is sent along with it."""
    DEAD = auto()
    """Claimed too often: to be settled as dead with `LEASE_EXPIRED`, unsent."""


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """How many claims without a settlement a message may have before it is a suspect.

    More than `alone_after` claims: sent alone. More than `dead_after`: dead.
    """

    alone_after: int = 3
    dead_after: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.alone_after < self.dead_after:
            raise ValueError(
                f"claim limits are alone_after={self.alone_after!r} and "
                f"dead_after={self.dead_after!r}; alone_after must be 0 or more and "
                "dead_after greater, so that a suspect is sent alone before it goes dead"
            )


DEFAULT_CLAIM_LIMITS = ClaimLimits()
NEVER_DEAD = ClaimLimits(dead_after=sys.maxsize)
"""For deliveries whose destination judges by itself what was claimed too often. A suspect still goes alone."""


def handling(claims: int, limits: ClaimLimits = DEFAULT_CLAIM_LIMITS) -> Handling:
    """Decide how to treat a message claimed `claims` times, this claim included.

    Claims are counted apart from attempts: a worker that dies reports no failed attempt.
    """
    if claims > limits.dead_after:
        return Handling.DEAD
    if claims > limits.alone_after:
        return Handling.ALONE
    return Handling.NORMAL


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """What to do with each message of a claimed batch, by its index, in batch order."""

    send: tuple[int, ...]
    give_back: tuple[int, ...]
    """To be released unsent, this claim taken off their count again: otherwise the
    neighbours of a suspect would turn into suspects themselves."""
    dead: tuple[int, ...]


def split_batch(
    claims: Sequence[int],
    limits: ClaimLimits = DEFAULT_CLAIM_LIMITS,
    keys: Sequence[Hashable | None] | None = None,
) -> BatchSplit:
    """Decide which messages of a claimed batch to send now.

    `claims` are the claim counts in batch order; `keys` the ordering keys, where the
    batch has any. Without a suspect everything is sent. With one, only the first suspect
    is sent, alone. Messages claimed too often are dead, and do not keep others from being
    sent. Every index is in exactly one part.

    The order within a key is kept: what follows a dead message on its key is given back,
    and if anything precedes the suspect on its key, the first of that is sent instead.
    """
    key_list: Sequence[Hashable | None] = (None,) * len(claims) if keys is None else keys
    dead: list[int] = []
    sendable: list[int] = []
    suspects: list[int] = []
    dead_keys: set[Hashable] = set()
    for index, (count, key) in enumerate(zip(claims, key_list, strict=True)):
        verdict = handling(count, limits)
        if verdict is Handling.DEAD:
            dead.append(index)
            if key is not None:
                dead_keys.add(key)
        elif key not in dead_keys:
            sendable.append(index)
            if verdict is Handling.ALONE:
                suspects.append(index)
    send = [_first_of_its_key(suspects[0], sendable, key_list)] if suspects else sendable
    settled = {*dead, *send}
    give_back = (index for index in range(len(claims)) if index not in settled)
    return BatchSplit(tuple(send), tuple(give_back), tuple(dead))


def _first_of_its_key(suspect: int, sendable: Sequence[int], keys: Sequence[Hashable | None]) -> int:
    key = keys[suspect]
    if key is None:
        return suspect
    return next(index for index in sendable if keys[index] == key)
