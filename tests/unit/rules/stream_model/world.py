"""What the model keeps of the world: messages, the log and its slot, the row of the stream, two readers."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from typing import NamedTuple

from postroom.rules.stream.modes import Mode


class Mistake(StrEnum):
    """What the protocol must not do. The search finds each of them wrong, or it could not find anything."""

    CONFIRM_WHAT_IS_READ = auto()
    """The server is told that all is done that was read."""
    CONFIRM_BEFORE_THE_HEARTBEAT = auto()
    """The server is told how far all is done before the record says so."""
    DONE_WHEN_SENT = auto()
    """What was sent counts as done before it is on record."""
    NO_SWEEP = auto()
    """Whoever finds the slot gone makes a new one, and goes on."""
    NAME_THE_SLOT_FIRST = auto()
    """The record names a new slot before the sweep is done."""
    RECORD_WITHOUT_TOKEN = auto()
    """A record counts whoever has the lease."""
    DROP_WHAT_IS_LATE = auto()
    """What meets the end of the lease is dropped, and the term goes on if the lease is renewed after all."""
    FORGET_FAILED_KEYS = auto()
    """What was read before a failure of its key was on record is sent."""
    LEAVE_THOSE_BEHIND = auto()
    """What was not sent is recorded without those behind it."""
    DO_NOT_ASK_THE_TABLE = auto()
    """Messages are sent although others of their key are in the table."""
    RECORD_TWICE = auto()
    """What the last reader may have recorded is recorded once more."""
    FORGET_EARLIER_READERS = auto()
    """A reader that leaves says what it has read, and not what those before it had."""
    TABLE_AT_ONCE = auto()
    """The way back to the table has no modes between."""
    LANES_GO_ON = auto()
    """What is in the table is sent while the stream is drained."""
    FORGET_OPEN_TRANSACTIONS = auto()
    """The last sweep does not wait for those who may have written to the stream."""


class Row(IntEnum):
    """What the tables hold of a message."""

    ABSENT = auto()
    """It is not committed yet."""
    STREAMED = auto()
    """It is in the log, and on record nowhere."""
    DELIVERY = auto()
    RECEIPT = auto()


class Fate(IntEnum):
    """What a reader has decided about a message."""

    READ = auto()
    SENT = auto()
    UNSENT = auto()
    SETTLED = auto()
    DROPPED = auto()


class Phase(IntEnum):
    """What a relay does with the stream."""

    STANDS_BY = auto()
    LEADS = auto()
    """It has the lease, and looks for the slot."""
    SWEEPS = auto()
    BEGINS = auto()
    READS = auto()
    LEAVES = auto()


class Flying(NamedTuple):
    """A message that a reader has read."""

    place: int
    fate: Fate


class Reader(NamedTuple):
    """A relay's memory."""

    phase: Phase = Phase.STANDS_BY
    interrupted: bool = False
    slot: int = 0
    """The number of the slot that it reads."""
    done: int = 0
    recorded: int = 0
    known_until: int = 0
    read: int = 0
    flight: tuple[Flying, ...] = ()
    believes: bool = True
    """Whether its lease holds as far as it knows."""
    failed_at: int = 0
    """The place of a message that was not sent; 0 if there is none."""
    failure_known: int = 0
    """Questions about places up to this one began before its record had committed."""


class World(NamedTuple):
    """A state of everything."""

    rows: tuple[Row, ...]
    faults: int
    readers: tuple[Reader, ...]
    received: tuple[int, ...] = ()
    """By the broker, each message once, in the order in which it came first."""
    log: tuple[int, ...] = ()
    open_streamed: bool | None = None
    """How the open transaction has written the next message; None if there is no transaction."""
    mode: Mode = Mode.TABLE
    owner: int = 0
    """Who has the token: the number of a reader, from 1."""
    lease: bool = False
    """Whether the lease has not ended."""
    done: int = 0
    read_to: int = 0
    named: bool = False
    """Whether the record names the slot."""
    slot: int = 0
    """Its number; 0 if there is none."""
    slots: int = 0
    """How many there were."""
    began: int = 0
    """The place at which it was made."""
    confirmed: int = 0
    older: bool = False
    """A transaction that was open when producers were told to write deliveries has not ended."""
    is_back: bool = False
    """It was taken back to the table: nobody puts it into the stream again."""
    wrong: str = ""

    @property
    def end(self) -> int:
        return len(self.log)


@dataclass(frozen=True)
class Scenario:
    """What can happen."""

    messages: int = 2
    faults: int = 1
    readers: int = 2
    server_can_fail: bool = False
    """It crashes, or loses the slot."""
    stops: bool = False
    """Readers may leave by themselves."""
    goes_back: bool = False
    refusals: bool = True
    logged: bool = False
    """Messages are in the log alone: nothing is recorded of one that was sent."""
    mistakes: frozenset[Mistake] = frozenset()

    def makes(self, mistake: Mistake) -> bool:
        return mistake in self.mistakes

    def first(self) -> World:
        return World((Row.ABSENT,) * self.messages, self.faults, (Reader(),) * self.readers)


class Change(NamedTuple):
    """Something that can happen."""

    name: str
    world: World
    need_not_happen: bool = False


def fault(name: str, world: World) -> Change:
    return Change(name, world._replace(faults=world.faults - 1), need_not_happen=True)


def with_row(world: World, message: int, row: Row) -> World:
    return world._replace(rows=(*world.rows[:message], row, *world.rows[message + 1 :]))


def with_reader(world: World, number: int, reader: Reader) -> World:
    return world._replace(readers=(*world.readers[:number], reader, *world.readers[number + 1 :]))


def received(world: World, message: int) -> World:
    """The broker gets it; consumers drop what they know."""
    return world if message in world.received else world._replace(received=(*world.received, message))
