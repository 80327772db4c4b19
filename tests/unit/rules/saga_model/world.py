"""What the model keeps of the world: one saga's rows, the workers, the service that its calls reach."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from typing import NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, Plan, SagaOutcome, StepOutcome

Rows = tuple[StepOutcome | None, ...]
"""What is on record for each step of the plan."""


class Mistake(StrEnum):
    """What the protocol must not do. The search finds each of them wrong, or it could not find anything."""

    LOOK_AT_THE_LEASE = auto()
    """A step's transaction looks whether it holds the lease, and commits later without a lock."""
    READ_WITHOUT_THE_LEASE = auto()
    """A worker reads what others have done since it lost its lease, and begins what comes next."""
    ABORT_BY_FLAG = auto()
    """An abort leaves the lease to the worker, which is to read a flag."""
    ABORT_ON_OLD_ROWS = auto()
    """An abort reads the steps before it locks the delivery."""
    UNDO_WHAT_IS_LOGGED = auto()
    """A call that comes next is undone only if it is on record."""
    UNDO_ONE_OF_A_GROUP = auto()
    """Of the calls of a group that come next, only the first is undone."""
    TURN_UNDER_THE_OLD_TOKEN = auto()
    """A turn keeps the token, which a thread that timed out has too."""
    TURN_OVERWRITES = auto()
    """A turn records the failed step even if a thread that timed out has just done it."""
    TURN_FROM_MEMORY = auto()
    """After a turn the worker undoes what it remembers instead of reading the record."""
    EVENT_WITHOUT_LOCK = auto()
    """A wait looks for its event, and goes to sleep later."""
    EVERY_REFUSAL_COUNTS = auto()
    """A call that was refused is not undone, whatever became of earlier attempts."""
    STRANDED_FORGETS_CLAIMS = auto()
    """Putting a stranded saga back clears its count of claims."""
    POSTPONED_FORGETS_CLAIMS = auto()
    """A saga of which nothing could be begun now is postponed, and its count of claims cleared."""
    GIVE_BACK_A_RUNNING_CALL = auto()
    """A worker that stops gives a saga back while its call is under way."""
    RESUME_FORGETS = auto()
    """To resume clears the count of claims."""
    PIVOT_TURNS = auto()
    """A pivot that nothing can undo turns although it may have happened."""
    NO_BARRIER = auto()
    """The called service does what arrives."""
    RUN_AGAIN_ON_A_LOST_ANSWER = auto()
    """A step whose COMMIT got no answer runs again at once, and its row may be written twice."""
    READ_AGAIN_FORGETS = auto()
    """A worker that reads again after a lost answer does not count what it has tried."""
    SIGNAL_WAKES_NOBODY = auto()
    """To receive an event does not wake the saga that sleeps."""
    CHILD_TELLS_LATER = auto()
    """A child tells its parent after the transaction that ends it."""


class Doing(IntEnum):
    """What a worker is at."""

    IDLE = 0
    CLAIMED = 1
    """It has a claim, and has not read the record."""
    DECIDES = 2
    RUNS = 3
    NO_EVENT = 4
    """Only by mistake: it has found no event, and goes to sleep next."""


class At(IntEnum):
    """How far a worker is with one step or compensation."""

    NEW = 0
    OPEN = 1
    """The function has returned; its transaction is open."""
    LOOKED = 2
    """Only by mistake: the lease was there."""
    SENT = 3
    ANSWERED = 4
    LOGGED = 5
    UNSURE = 6
    """The answer to COMMIT was lost, or the row was there before."""
    FAILED = 7
    REJECTED = 8
    REFUSED = 9


class Signal(IntEnum):
    """How far the one event of a saga is."""

    NOT_SENT = 0
    SENT = 1
    STORED = 2
    USED = 3


class Worker(NamedTuple):
    """A worker, with what it has read."""

    doing: Doing = Doing.IDLE
    holds: bool = False
    """Its token is the one in the delivery; it cannot know."""
    direction: Direction = Direction.FORWARD
    forward: Rows = ()
    back: Rows = ()
    attempts: int = 0
    claims: int = 0
    steps: tuple[tuple[int, At], ...] = ()
    has_event: bool = False


IDLE = Worker()


class Thread(NamedTuple):
    """A function that timed out, and whose transaction is still open."""

    step: int
    direction: Direction
    holds: bool


class World(NamedTuple):
    """A state of everything."""

    forward: Rows
    back: Rows
    direction: Direction = Direction.FORWARD
    outcome: SagaOutcome = SagaOutcome.OPEN
    delivery: Stored | None = Stored.READY
    due: bool = False
    """Of a delivery that sleeps: its time has come."""
    attempts: int = 0
    claims: int = 0
    effects: tuple[tuple[Direction, int], ...] = ()
    """What was done and undone, in this order."""
    marks: tuple[tuple[bool, bool], ...] = ()
    """The inbox of the called service: do and undo of each step."""
    network: tuple[tuple[Direction, int], ...] = ()
    """Requests under way."""
    signal: Signal = Signal.NOT_SENT
    child_ended: bool = False
    late: bool = False
    """The deadline has passed."""
    timed_out: bool = False
    """The wait has taken too long."""
    aborted: bool = False
    operator_looked: bool = False
    code_gone: bool = False
    pardoned: frozenset[int] = frozenset()
    """Steps that an operator skipped."""
    workers: tuple[Worker, ...] = (IDLE, IDLE)
    threads: tuple[Thread, ...] = ()
    faults: int = 0
    """How many may still happen."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """A plan, and what may happen to it."""

    plan: Plan
    faults: int
    """How many crashes, lost leases, lost answers, failures, timeouts and refusals in total."""
    has_deadline: bool = False
    wait_times_out: bool = False
    wait_continues: bool = False
    may_abort: bool = False
    may_signal: bool = False
    child: int | None = None
    """The step that starts a child, whose end is the event."""
    lost_code: int | None = None
    """The step whose function a deploy may take away."""
    unwanted: frozenset[int] = frozenset()
    """Steps whose condition is false."""
    claims: int = 0
    """Claims without progress before it begins."""
    attempts: int = 2
    """How many attempts a step or compensation has."""
    may_stop: bool = False
    """A worker may give the saga back, or postpone it."""
    mistakes: frozenset[Mistake] = frozenset()

    def first(self) -> World:
        rows: Rows = (None,) * len(self.plan)
        return World(rows, rows, claims=self.claims, marks=((False, False),) * len(self.plan), faults=self.faults)

    def makes(self, mistake: Mistake) -> bool:
        return mistake in self.mistakes
