"""Parts: what the coordinator asks of a participant, of the log and of the last resource.

Each method is one call of a round. It returns a result, or an awaitable of one if the transaction is async.
"""

from __future__ import annotations

from enum import Enum, auto
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.rules.twophase_ids import BranchId
from postroom.rules.twophase_plan import Abilities
from postroom.store.sql.db_errors import explained, is_lost_connection
from postroom.store.sql.steps import Steps, arun, run
from postroom.store.twophase.branch_kinds import BRANCHES

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Query
    from postroom.store.twophase.branches import Branches
    from postroom.twophase.lines import Line, Opener

T = TypeVar("T")


class State(Enum):
    """How far a participant's branch is."""

    CLOSED = auto()
    """It has no connection, or gave it up."""
    OPEN = auto()
    BEGUN = auto()
    PREPARED = auto()
    ENDED = auto()


class Part:
    """Someone whom the coordinator calls."""

    name: str
    is_open = False
    """There is something to `release`."""
    thread_bound = False
    """Its calls must be made in the thread that opened it."""

    def release(self) -> Any:
        """Give the connection back."""

    def break_off(self) -> None:
        """Close the connection for good, from any thread; whoever waits for its server gets an error."""


class Participant(Part):
    """A part that commits or rolls back."""

    state = State.CLOSED
    branch = ""
    """The id of its branch in the log; empty for one that does not prepare."""
    abilities = Abilities()
    flushes = False
    """There may be changes that an ORM has not written yet."""
    given: Any
    """What the code inside gets."""

    def open(self) -> Any:
        """Connect."""

    def begin(self, scope: str, tx: str, seconds: float, *, prepares: bool) -> Any:
        """Begin its branch, which its server may end after so many seconds without work."""
        raise NotImplementedError

    def flush(self) -> Any:
        """Write what an ORM has not written yet."""
        raise NotImplementedError

    def prepare(self) -> Any:
        """Promise to commit."""
        raise NotImplementedError

    def commit(self) -> Any:
        """Commit what is prepared, or what never will be."""
        raise NotImplementedError

    def roll_back(self) -> Any:
        """Roll back, however far it is."""
        raise NotImplementedError


class DatabaseParticipant(Participant):
    """A database: one connection, which SQL of its own begins and ends."""

    def __init__(self, name: str, opener: Opener, names: Callable[[str], Names], *, asynchronous: bool) -> None:
        self.name = name
        self._opener = opener
        self._names = names
        self._asynchronous = asynchronous
        self._branches: Branches | None = None
        self._line: Line | None = None
        self._given_up = False

    @property
    def line(self) -> Line:
        """Its connection."""
        if self._line is None:
            raise RuntimeError(f"participant {self.name!r} has no connection")
        return self._line

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # it follows from the connection
        """Whether it has a connection."""
        return self._line is not None

    @property
    def thread_bound(self) -> bool:  # type: ignore[override]
        """Whether its calls must be made in the thread that opened it."""
        return self._opener.thread_bound and not self._asynchronous

    @property
    def flushes(self) -> bool:  # type: ignore[override]
        """Whether there is an ORM."""
        return self.line.flushes

    @property
    def given(self) -> Any:
        """What the code inside gets."""
        return self.line.given

    def open(self) -> Any:
        """Connect."""
        if self._asynchronous:
            return self._aopen()
        line = self._opener.open()
        if self._given_up:  # it waited for a pool or a server, and nobody waits for it any more
            line.release()
            raise ConnectionAbortedError("the connection came too late")
        return self._opened(line)

    async def _aopen(self) -> None:
        self._opened(await self._opener.aopen())

    def _opened(self, line: Line) -> None:
        self._line = line
        self.state = State.OPEN
        self.abilities = Abilities(can_prepare=BRANCHES[line.dialect].can_prepare)

    def run(self, steps: Steps[T]) -> Any:
        """Run statements on the connection. One that fails in an unknown way is not used again."""
        guarded = explained(self._guarded(steps))
        return arun(guarded, self.line.execute) if self._asynchronous else run(guarded, self.line.execute)

    def _guarded(self, steps: Steps[T]) -> Steps[T]:
        try:
            return (yield from steps)
        except Exception as error:
            if isinstance(error, OSError) or is_lost_connection(error):
                self.break_off()
            raise

    def begin(self, scope: str, tx: str, seconds: float, *, prepares: bool) -> Any:
        """Begin, after a check at the first time that the database can take part."""
        return self.run(self._begin(BranchId(scope, tx, self.name), seconds, prepares=prepares))

    def _begin(self, branch: BranchId, seconds: float, *, prepares: bool) -> Steps[None]:
        line = self.line
        kept = self._opener.branches
        self._branches = kept.get(prepares)
        if self._branches is None:
            names = self._names(line.dialect)
            self._branches = kept[prepares] = yield from BRANCHES[line.dialect].check(names, prepares=prepares)
        self._identity = branch.text if branch.tx else f"{branch.text}:{token_hex(6)}"  # one without a log has no id
        self.state = State.BEGUN  # even if the answer is lost
        if prepares:
            self.branch = yield from self._branches.begin(branch, seconds, line.isolation)
        else:
            yield from self._branches.begin_plain(self._identity, seconds, line.isolation)

    @property
    def branches(self) -> Branches:
        """The SQL for its branches."""
        if self._branches is None:
            raise RuntimeError(f"participant {self.name!r} has not begun")
        return self._branches

    def flush(self) -> Any:
        """Have the ORM write its changes."""
        return self.line.flush()

    def prepare(self) -> Any:
        """Prepare the branch."""
        return self.run(self._prepare())

    def _prepare(self) -> Steps[None]:
        yield from self.branches.prepare(self.branch)
        self.state = State.PREPARED

    def commit(self) -> Any:
        """Commit what is prepared, or the only participant's transaction."""
        return self.run(self._commit())

    def _commit(self) -> Steps[None]:
        if self.state is State.PREPARED:
            yield from self.branches.commit_prepared(self.branch)
        else:
            yield from self.branches.confirm(self._identity)
            yield from self.branches.commit(self._identity)
        self.state = State.ENDED

    def deciding(self, decide: Callable[[Query | None], Steps[bool]]) -> Steps[bool]:
        """Commit together with a decision, if it is made; returns whether it was.

        `decide` is given what must be so for a decision; nothing if that was asked before.
        """
        branches, identity = self.branches, self._identity
        only_if = branches.is_confirmed(identity)
        if only_if is None:
            yield from branches.confirm(identity)
        decided = yield from decide(only_if)
        if decided:
            yield from branches.commit(identity)
            self.state = State.ENDED
        elif only_if is not None:
            yield from branches.confirm(identity)  # raises if this was why
        return decided

    def roll_back(self) -> Any:
        """Roll back, however far it is."""
        return self.run(self._roll_back())

    def _roll_back(self) -> Steps[None]:
        try:
            if self.state is State.PREPARED:
                yield from self.branches.roll_back_prepared(self.branch)
            elif self.branch:
                yield from self.branches.roll_back(self.branch)
            else:
                yield from self.branches.roll_back_plain(self._identity)
        except Exception:
            self.break_off()  # the server ends what is not prepared
            raise
        self.state = State.ENDED

    def release(self) -> Any:
        """Give the connection back to its pool; close one with something open."""
        line = self.line
        self._line = None
        if self.state is not State.ENDED:
            line.break_off()  # never back to a pool with something open
        return self._arelease(line) if self._asynchronous else self._release(line)

    def _release(self, line: Line) -> None:
        try:
            if self.state is State.ENDED and self._branches is not None:
                run(self._branches.restore(prepares=bool(self.branch)), line.execute)
        except Exception:
            line.break_off()
            raise
        finally:
            line.release()

    async def _arelease(self, line: Line) -> None:
        try:
            if self.state is State.ENDED and self._branches is not None:
                await arun(self._branches.restore(prepares=bool(self.branch)), line.execute)
        except Exception:
            line.break_off()
            raise
        finally:
            await line.release()

    def break_off(self) -> None:
        """Close the connection: its server ends what is not prepared."""
        self.state = State.CLOSED
        self._given_up = True
        if self._line is not None:
            self._line.break_off()
