"""Two-phase commit: what each answer means, for the coordinator and for recovery.

The log decides. Nobody commits before it says so, and nobody rolls back what it may still decide to commit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

from postroom.errors import InvalidSetting


class Decision(IntEnum):
    """What a row of the log says. The tables depend on these values."""

    ABORT = 0
    COMMIT = 1
    OPEN = 2
    """Not decided. The row is there because a branch cannot be found without it, or for the last resource."""


class Answer(Enum):
    """How a participant, the log or the last resource answered."""

    YES = auto()
    NO = auto()
    """It refused: what it was asked for has not happened, and will not."""
    LOST = auto()
    """No answer, a time-out, or one that leaves open whether it happened."""


class Act(Enum):
    """What to do next."""

    CALL_LAST = auto()
    """Have the last resource do its work."""
    DECIDE_COMMIT = auto()
    """Write commit to the log."""
    DECIDE_ABORT = auto()
    """Write abort to the log unless a decision is there; then do what its row says (`act_on`)."""
    ASK_LAST = auto()
    """Have the last resource abort; its answer decides (`after_asking_last`)."""
    COMMIT = auto()
    """Commit all branches."""
    ROLL_BACK = auto()
    """Roll all branches back; an open row becomes an abort."""
    LEAVE = auto()
    """Touch nothing: the coordinator raises `TransactionInDoubt`, and recovery looks again later."""
    QUARANTINE = auto()
    """Only an operator can find out what the last resource did."""


# ── how a transaction commits


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a participant can do."""

    can_prepare: bool = True
    can_list: bool = True
    """It can say which of its branches are prepared."""
    can_commit_alone: bool = True
    """It can commit without having prepared, as databases can."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a transaction commits."""

    prepare: tuple[str, ...]
    """Who prepares."""
    decided_by: str | None = None
    """Whose own commit is the decision, because its database has the log; None: the decision commits by itself."""
    alone: bool = False
    """`decided_by` is the only one: it commits, and the log hears nothing."""
    open_row: bool = False
    """The log needs an open row before anybody prepares."""


def course(participants: Mapping[str, Abilities], *, holder: str | None, has_last: bool) -> Course:
    """Decide how a transaction with these participants commits. Raises `InvalidSetting` if it cannot be atomic.

    `holder` is the one among them whose database has the log. Beside a last resource it prepares like the others: its
    commit could fail after the last resource has done its work.
    """
    names = tuple(participants)
    if not has_last and len(names) == 1 and participants[names[0]].can_commit_alone:
        return Course((), names[0], alone=True)
    decided_by = None if has_last else holder
    prepare = tuple(name for name in names if name != decided_by)
    for name in prepare:
        if not participants[name].can_prepare:
            raise InvalidSetting(_cannot_prepare(name, is_holder=name == holder))
    return Course(prepare, decided_by, open_row=has_last or not all(participants[name].can_list for name in prepare))


def _cannot_prepare(name: str, *, is_holder: bool) -> str:
    if is_holder:
        return (
            f"participant {name!r} cannot prepare, so it cannot commit together with a last resource, which cannot "
            "either: use a saga, or give one of the two up"
        )
    return f"participant {name!r} cannot prepare: keep the log in its database (log={name!r}), or use a saga"


# ── the coordinator


_OUTCOME_UNKNOWN = frozenset({0, "08007", "40003", 1053, 1180})
"""Codes of a COMMIT that may have happened; PyMySQL's own error for a closed connection has the code 0."""


def answer_to_decision(code: object, *, lost: bool) -> Answer:
    """Judge an error that came instead of the decision's answer: its code, and whether the connection was lost.

    NO only if the server itself refused: a driver's own error says nothing about what the server did.
    """
    return Answer.NO if isinstance(code, str | int) and code not in _OUTCOME_UNKNOWN and not lost else Answer.LOST


def after_prepare(answers: Iterable[Answer], *, has_last: bool = False) -> Act:
    """All are ready, or nobody commits. One whose answer was lost may be prepared: roll it back, too."""
    if all(answer is Answer.YES for answer in answers):
        return Act.CALL_LAST if has_last else Act.DECIDE_COMMIT
    return Act.ROLL_BACK


def after_decision(answer: Answer, *, has_last: bool = False) -> Act:
    """Decide what follows the attempt to write commit to the log, and to commit the holder with it.

    NO: it was too late, or recovery has aborted. A lost answer is not a no: the log must be asked. Once the last
    resource has done its work nothing but commit can be written: write it again, and leave it if the log is away.
    """
    if answer is Answer.YES:
        return Act.COMMIT
    if has_last:
        return Act.DECIDE_COMMIT
    return Act.ROLL_BACK if answer is Answer.NO else Act.DECIDE_ABORT


def after_last(answer: Answer, *, can_abort: bool) -> Act:
    """Decide what follows the last resource's answer to commit."""
    if answer is Answer.LOST:
        return Act.ASK_LAST if can_abort else Act.LEAVE
    return Act.DECIDE_COMMIT if answer is Answer.YES else Act.ROLL_BACK


def after_asking_last(answer: Answer) -> Act:
    """Decide what follows the last resource's answer to abort. YES: it never happens. NO: it had happened."""
    if answer is Answer.LOST:
        return Act.LEAVE
    return Act.DECIDE_ABORT if answer is Answer.YES else Act.DECIDE_COMMIT


# ── recovery


def act_on(
    decision: Decision | None, *, past_deadline: bool, has_last: bool = False, last_can_abort: bool = False
) -> Act:
    """Decide what to do with a transaction, given what the log says: None if it has no row.

    List the branches before you read the log: a branch that is listed later may belong to a later decision. Before
    the deadline the coordinator may still decide. The same holds after `Act.DECIDE_ABORT`, with what the row then says,
    or None if somebody is deciding right now.
    """
    match decision:
        case Decision.COMMIT:
            return Act.COMMIT
        case Decision.ABORT:
            return Act.ROLL_BACK
        case _ if not past_deadline:
            return Act.LEAVE
        case Decision.OPEN if has_last:
            return Act.ASK_LAST if last_can_abort else Act.QUARANTINE
        case _:
            return Act.DECIDE_ABORT
