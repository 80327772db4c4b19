"""Two-phase commit: whether a branch has ended as decided, judged by what its participant says.

"No such branch" is the hard answer: it may mean that the branch was committed, rolled back by somebody, or cannot be
reached yet. A mark in the participant's inbox, which commits with the branch, tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from postroom.rules.backoff import RetryPolicy
from postroom.rules.twophase_plan import Decision

RECOVERY_RETRY = RetryPolicy.exponential(base=1.0, cap=300.0, max_attempts=1_000_000)
"""How long a transaction waits that recovery could not settle: 1 s, doubling to 5 minutes."""


class Said(Enum):
    """What a participant said when a branch was to be committed or rolled back."""

    DONE = auto()
    GONE = auto()
    """It has no such branch: somebody finished it, or it never prepared."""
    ROLLED_BACK = auto()
    """It had rolled the branch back, or the branch had only read."""
    BUSY = auto()
    """The connection that prepared it is still open, or another is finishing it."""
    DENIED = auto()
    """This user must not finish it."""
    ELSEWHERE = auto()
    """The branch belongs to another database of this server."""
    UNKNOWN = auto()
    """No answer, or an error that says nothing about the branch."""


_GONE = "42704"
_NOT_FOUND = 1397
_SAID = {
    _GONE: Said.GONE,
    1402: Said.ROLLED_BACK,
    1613: Said.ROLLED_BACK,
    1614: Said.ROLLED_BACK,
    "55000": Said.BUSY,
    "42501": Said.DENIED,
    1044: Said.DENIED,
    1142: Said.DENIED,
    1227: Said.DENIED,
    "0A000": Said.ELSEWHERE,
}


def meaning(code: object, *, listed: bool) -> Said:
    """What an error says about a branch, by its SQLSTATE on PostgreSQL or its number on MySQL.

    `listed`: the participant still lists the branch, looked up after the error. MariaDB says "not found" also while the
    connection that prepared it is open.
    """
    if code == _NOT_FOUND:
        return Said.BUSY if listed else Said.GONE
    return _SAID.get(code, Said.UNKNOWN) if isinstance(code, str | int) else Said.UNKNOWN


class Trouble(Enum):
    """Why recovery cannot settle a transaction, and waits for an operator."""

    DAMAGED = auto()
    """Commit was decided, and somebody has rolled a branch back; or the reverse."""
    DENIED = auto()
    ELSEWHERE = auto()
    ROLLED_BACK = auto()
    NOT_CONFIGURED = auto()
    """No participant with this name was given to recovery."""
    LAST_UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The branch has ended as decided."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again later."""

    kill: bool = False
    """End the connection that prepared the branch: it is past its deadline and still there."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Note the trouble in the log, and try again, because an operator may have mended it."""

    trouble: Trouble


Settling: TypeAlias = Confirmed | Again | Quarantine


def after(decision: Decision, said: Said, *, witness: bool | None = None, past_deadline: bool = False) -> Settling:
    """Decide whether a branch has ended as decided.

    `witness`: whether its mark is in the participant's inbox, looked up after the answer; None if there is no inbox, or
    the mark may have been cleaned since. `past_deadline`: by the log's clock, and by the deadline in the branch's id.
    """
    if said is Said.GONE or said is Said.ROLLED_BACK:
        return _ended(decision, said, witness)
    if said is Said.DONE and decision is Decision.COMMIT and witness is False:
        return Quarantine(Trouble.DAMAGED)  # it said so, but nothing is there
    if said is Said.BUSY:
        return Again(kill=past_deadline)
    return _SETTLING[said]


_SETTLING: dict[Said, Settling] = {
    Said.DONE: Confirmed(),
    Said.UNKNOWN: Again(),
    Said.DENIED: Quarantine(Trouble.DENIED),
    Said.ELSEWHERE: Quarantine(Trouble.ELSEWHERE),
}


def _ended(decision: Decision, said: Said, witness: bool | None) -> Settling:  # noqa: FBT001 - private, and by position
    commits = decision is Decision.COMMIT
    if witness is not None:
        return Confirmed() if witness is commits else Quarantine(Trouble.DAMAGED)
    return Quarantine(Trouble.ROLLED_BACK) if commits and said is Said.ROLLED_BACK else Confirmed()


def witness(*, marked: bool, age: float, kept: float) -> bool | None:
    """What a mark, or its absence, proves: nothing if it may have been cleaned since.

    `age`: seconds since the deadline; `kept`: seconds for which the participant's inbox keeps its marks.
    """
    return True if marked else (None if age >= kept else False)


def together(branches: Mapping[str, Settling]) -> Settling:
    """How the whole transaction stands: trouble with one is noted although others have to be tried again."""
    results = branches.values()
    trouble = next((one for one in results if isinstance(one, Quarantine)), None)
    return trouble or next((one for one in results if isinstance(one, Again)), Confirmed())


def problem(trouble: Trouble, participant: str) -> str:
    """Say what is wrong and what to do, for the log and its readers."""
    return _PROBLEMS[trouble].format(participant=repr(participant))


_FORGET = "mend the data by hand, then `postroom transactions forget` it"
_PROBLEMS = {
    Trouble.DAMAGED: "damaged: participant {participant} ended its branch against the decision, so somebody finished "
    f"it by hand or lost data: {_FORGET}",
    Trouble.DENIED: "participant {participant} lets only the role that prepared the branch, or a superuser, finish it: "
    "recover with the role that the application has",
    Trouble.ELSEWHERE: "the branch of participant {participant} is in another database of its server: correct the "
    "participant's URL",
    Trouble.ROLLED_BACK: "participant {participant} rolled its branch back, or the branch had only read: compare the "
    f"data; if some is missing, {_FORGET}",
    Trouble.NOT_CONFIGURED: "participant {participant} is not known here: recover with a configuration that has it, "
    "under this name",
    Trouble.LAST_UNKNOWN: "whether the last resource did its work is not known, and recovery cannot ask it: it has no "
    "abort(), or recovery was not given the class that `postroom transactions show` names. Give it, or find out, and "
    "`postroom transactions decide` it: commit or abort",
}
