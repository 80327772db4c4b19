"""What the model keeps of the world: one transaction's branches, its log, its coordinator and two recoveries."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum, auto
from functools import cached_property
from typing import NamedTuple

from postroom.rules.twophase_plan import Abilities, Answer, Course, Decision, course
from postroom.rules.twophase_settling import Trouble


class Mistake(StrEnum):
    """What the protocol must not do. The search finds each of them wrong, or it could not find anything."""

    TRUST_THE_ANSWER_TO_PREPARE = auto()
    """PREPARE of a failed transaction is no error on PostgreSQL: it rolls back, and that counts as ready."""
    LOST_PREPARE_IS_READY = auto()
    DECIDE_EARLY = auto()
    """The decision does not wait for all answers."""
    NO_LOG = auto()
    """The coordinator commits all as soon as all are ready."""
    COMMIT_WITHOUT_LOOKING = auto()
    """The decision and the holder's COMMIT go in one message, whether or not the decision was written."""
    LOST_DECISION_IS_NO = auto()
    """A decision without an answer counts as not made."""
    DECIDE_WITHOUT_DEADLINE = auto()
    """A commit is written to the log whatever the time."""
    CLOSING_ROLLS_BACK = auto()
    """To close a connection rolls its prepared branch back."""
    NO_SESSION_TIMEOUTS = auto()
    """Servers keep the transaction of a coordinator that does nothing."""
    NO_ROW_IS_ABORT = auto()
    """Recovery rolls back what has no row, and writes none."""
    ROW_THAT_WAS_THERE_IS_IGNORED = auto()
    """Recovery writes abort and rolls back, also if a decision is there."""
    LIST_BEFORE_ASKING = auto()
    """"Not found" counts as done because a list that was made before it lacks the branch."""
    WITNESS_BEFORE_ASKING = auto()
    """A branch that is gone counts as damaged because its mark was looked up before."""
    OLD_WITNESS = auto()
    """A mark that may have been cleaned counts as never made."""
    LOOK_THROUGH_THE_LOCK = auto()
    """Recovery takes a row that is being written for none."""
    IMPATIENT = auto()
    """Recovery does not wait for the deadline."""
    NOT_FOUND_IS_DONE = auto()
    """"Not found" counts as done although the branch is listed."""
    UNKNOWN_IS_DONE = auto()
    """Recovery settles a transaction without hearing from all."""
    UNREACHED_IS_SETTLED = auto()
    """The coordinator settles a transaction without hearing from all."""
    SETTLE_WHAT_IS_LISTED = auto()
    """Recovery settles a transaction of which it knows the listed branches alone."""
    SCAN_ONCE = auto()
    """Recovery looks for branches only before it has decided."""
    NO_WITNESS = auto()
    """A branch that is gone counts as done."""
    NEVER_KILL = auto()
    """Nothing ends a connection that keeps its prepared branch: no time-out, and not recovery."""
    FORGET_UNSETTLED = auto()
    """Retention removes a commit that not all have confirmed."""
    NO_OPEN_ROW = auto()
    """A branch that cannot be listed is prepared without a row."""
    SETTLE_ABORTS_AT_ONCE = auto()
    """An abort is settled although a branch that cannot be listed has not confirmed it."""
    FORGETFUL_RESOURCE = auto()
    """A user's resource prepares a branch that was aborted before."""
    HOLDER_BESIDE_LAST = auto()
    """The holder commits with the decision, after the last resource has done its work."""
    LAST_COMES_FIRST = auto()
    """The last resource does its work before all are ready."""
    LAST_WITHOUT_A_ROW = auto()
    """The last resource does its work before the log knows of it."""
    LOST_LAST_IS_NO = auto()
    """A last resource without an answer counts as refused."""
    ABORT_WITHOUT_ASKING_LAST = auto()
    """Recovery aborts an open transaction although the last resource may have done its work."""
    ASK_ANOTHER_LAST = auto()
    """Recovery asks a last resource that the transaction has nothing to do with."""
    ABORT_AFTER_LAST = auto()
    """A lost decision is asked for with an abort, though the last resource has done its work."""
    LAST_FORGETS = auto()
    """The last resource does its work after it has promised that it never will."""
    DEADLINE_AFTER_LAST = auto()
    """The decision comes too late although the last resource has done its work."""


class Kind(IntEnum):
    """What a participant is."""

    HOLDER = 0
    """Its database has the log."""
    POSTGRESQL = 1
    MARIADB = 2
    """A prepared branch belongs to its connection as long as that is open."""
    RESOURCE = 3
    """A user's, which cannot list its branches."""


class Last(IntEnum):
    """The last resource."""

    NONE = 0
    CAN_ABORT = 1
    CANNOT_ABORT = 2


class State(IntEnum):
    """Of a branch."""

    ACTIVE = 0
    FAILED = 1
    """A statement has failed: nothing but a roll-back is possible."""
    PREPARED = 2
    COMMITTED = 3
    ABORTED = 4


class Branch(NamedTuple):
    """At its server."""

    state: State = State.ACTIVE
    preparing: bool = False
    """PREPARE is on its way; it may arrive after its sender is gone."""
    attached: bool = False
    """It is prepared, and the connection that did it is open."""


class Session(IntEnum):
    """The coordinator's transaction in the log's database."""

    NONE = 0
    WRITTEN = 1
    """The decision is written and locked, not committed."""
    COMMITTING = 2
    """COMMIT is on its way."""


class Phase(IntEnum):
    """What the coordinator is at."""

    WORKS = 0
    PREPARES = 1
    CALLS_LAST = 2
    WAITS_FOR_LAST = 3
    ASKS_LAST = 4
    DECIDES = 5
    WRITTEN = 6
    WAITS_FOR_LOG = 7
    ASKS_LOG = 8
    COMMITS = 9
    ROLLS_BACK = 10
    GONE = 11
    """It has ended or died: its connections are closed."""


class LastState(IntEnum):
    """Of the last resource's work."""

    WAITING = 0
    HAPPENED = 1
    NEVER = 2


class Told(IntEnum):
    """What the caller was told."""

    NOTHING = 0
    COMMITTED = 1
    ABORTED = 2


class Doing(IntEnum):
    """What a recovery is at."""

    IDLE = 0
    LISTED = 1
    DECIDES = 2
    ASKS_LAST = 3
    WRITES = 4
    """It writes what the last resource said."""
    ENDS = 5


class Recovery(NamedTuple):
    """A recovery, with what it has read."""

    doing: Doing = Doing.IDLE
    left: tuple[int, ...] = ()
    """The branches that it still has to end."""
    decision: Decision | None = None
    whole: bool = False
    """It goes by the log's row: if all confirm, the row is settled."""
    sure: bool = True
    """All so far have confirmed."""
    seen: tuple[int, ...] | None = None
    """Only by mistake: which branches were listed, or have a mark, before it asks."""


IDLE = Recovery()


class World(NamedTuple):
    """One state of everything."""

    branches: tuple[Branch, ...]
    phase: Phase = Phase.WORKS
    answers: tuple[Answer | None, ...] = ()
    """To PREPARE."""
    answer: Answer | None = None
    """Of the last resource, or to COMMIT."""
    session: Session = Session.NONE
    row: Decision | None = None
    settled: bool = False
    late: bool = False
    """The deadline has passed."""
    old: bool = False
    """So much time has passed that marks were cleaned."""
    last: LastState = LastState.WAITING
    calling: bool = False
    """The call of the last resource is on its way."""
    told: Told = Told.NOTHING
    recoveries: tuple[Recovery, ...] = (IDLE, IDLE)
    trouble: Trouble | None = None
    """What recovery noted for an operator."""
    meddled: bool = False
    """Somebody has rolled a prepared branch back by hand."""
    scanned: bool = False
    """Recovery has rolled back what it listed."""
    faults: int = 0
    """How many may still happen."""


@dataclass(frozen=True, eq=False)
class Scenario:
    """A transaction, and what may happen to it."""

    kinds: tuple[Kind, ...]
    faults: int
    """How many crashes, restarts, lost answers and refusals in total."""
    last: Last = Last.NONE
    has_witness: bool = False
    """Branches leave a mark when they commit."""
    may_meddle: bool = False
    """Somebody may roll a prepared branch back by hand."""
    recoveries: int = 2
    mistakes: frozenset[Mistake] = frozenset()

    def first(self) -> World:
        return World(
            (Branch(),) * len(self.kinds),
            answers=(None,) * len(self.kinds),
            recoveries=(IDLE,) * self.recoveries,
            faults=self.faults,
        )

    def makes(self, mistake: Mistake) -> bool:
        return mistake in self.mistakes

    @property
    def has_last(self) -> bool:
        return self.last is not Last.NONE

    @cached_property
    def course(self) -> Course:
        """As the rules have it, by the numbers of the participants."""
        abilities = {
            str(number): Abilities(can_list=kind is not Kind.RESOURCE, can_commit_alone=False)
            for number, kind in enumerate(self.kinds)
        }
        holder = next((str(number) for number, kind in enumerate(self.kinds) if kind is Kind.HOLDER), None)
        return course(abilities, holder=holder, has_last=self.has_last)

    @cached_property
    def holder(self) -> int | None:
        """The participant that commits with the decision."""
        if self.makes(Mistake.HOLDER_BESIDE_LAST):
            return self.kinds.index(Kind.HOLDER)
        return None if self.course.decided_by is None else int(self.course.decided_by)

    @cached_property
    def prepared(self) -> tuple[int, ...]:
        """The participants that prepare."""
        return tuple(number for number in map(int, self.course.prepare) if number != self.holder)

    @cached_property
    def has_open_row(self) -> bool:
        return self.course.open_row and not self.makes(Mistake.NO_OPEN_ROW)
