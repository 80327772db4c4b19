"""Branches: a participant's part of a two-phase commit, as SQL. Each database has its own commands for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from postroom.errors import PostroomError
from postroom.store.inbox import MARKERS
from postroom.store.sql.db_errors import code_of, is_denied, is_missing_table
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.rules.twophase_ids import BranchId
    from postroom.store.sql.names import Names

WITNESS = "twophase"
"""The consumer of the inbox marks that branches leave."""
WITNESS_KEPT = 7 * 86_400.0
"""Seconds for which such a mark is kept at least, whatever the inbox's retention."""
_UNKNOWN_DATABASE = 1049


class Ended(PostroomError):
    """The transaction that was begun is no longer open: the code inside has ended it itself, or the database has."""

    def __init__(self) -> None:
        super().__init__(
            "the transaction is no longer open: do not commit or roll back on a participant's connection, and do not "
            "go on after an error that undoes the transaction, such as a deadlock on MySQL"
        )


class Listed(NamedTuple):
    """A branch that is prepared on a server."""

    id: str
    """As `commit_prepared` and the log take it: `BranchId.text`."""
    branch: BranchId


class Branches:
    """The branches of one participant's database, on one connection in autocommit.

    Errors of the database are raised unchanged; `rules.twophase_plan` says what they mean.
    """

    can_prepare: ClassVar[bool] = True

    def __init__(self, names: Names, *, witness: bool) -> None:
        self._marker = MARKERS[names.dialect](names)
        self.witness = witness
        """Whether Postroom's tables are there, so that each branch leaves a mark that tells commit from rollback."""

    @classmethod
    def check(cls, names: Names, *, prepares: bool = True) -> Steps[Self]:
        """The branches of the database on the other end; without `prepares`, for the log's holder alone.

        Raises `TwoPhaseUnavailable`, which names the setting to change, if the database cannot prepare.
        """
        raise NotImplementedError

    def begin(self, branch: BranchId, seconds_left: float, isolation: str | None = None) -> Steps[str]:
        """Begin a branch, which the server ends if nothing happens for so long; returns its id for the log."""
        raise NotImplementedError

    def begin_plain(self, identity: str, seconds_left: float, isolation: str | None = None) -> Steps[None]:
        """Begin an ordinary transaction, for the log's holder or for the only participant. `confirm` knows it again."""
        raise NotImplementedError

    def confirm(self, identity: str) -> Steps[None]:
        """Call it once before the decision and `commit`. Raises `Ended` if this is not the transaction begun.

        It also raises if a statement has failed and the transaction cannot commit.
        """
        raise NotImplementedError

    def is_confirmed(self, identity: str) -> Query | None:
        """`confirm` as a condition in SQL, for the statement that decides; None where it needs one of its own."""
        del identity
        return None

    def commit(self, identity: str) -> Steps[None]:
        """Commit an ordinary transaction."""
        del identity
        yield Query("COMMIT", script=True)

    def roll_back_plain(self, identity: str) -> Steps[None]:
        """Roll back an ordinary transaction."""
        del identity
        yield Query("ROLLBACK", script=True)

    def prepare(self, id: str) -> Steps[None]:
        """Prepare the branch, with its mark. If it raises, only a lost connection can have left it prepared.

        Raises `Ended` if this is not the transaction begun.
        """
        raise NotImplementedError

    def commit_prepared(self, id: str) -> Steps[None]:
        raise NotImplementedError

    def roll_back_prepared(self, id: str) -> Steps[None]:
        raise NotImplementedError

    def roll_back(self, id: str) -> Steps[None]:
        """Roll back a branch that is not prepared, on the connection that began it."""
        raise NotImplementedError

    def listed(self, scope: str) -> Steps[list[Listed]]:
        """The prepared branches of a log's transactions. It waits for no other transaction."""
        raise NotImplementedError

    def is_attached(self, id: str) -> Steps[bool]:
        """Whether the connection that began the branch is still there, so that no other may end the branch."""
        del id
        yield from ()
        return False

    def kill(self, id: str) -> Steps[None]:
        """End the connection that keeps a prepared branch from others, if it is still there. Only MySQL has such."""
        del id
        yield from ()

    def is_marked(self, id: str) -> Steps[bool]:
        """Whether the branch has committed, where there is a `witness`."""
        return (yield from self._marker.is_marked(WITNESS, id))

    def restore(self, *, prepares: bool = True) -> Steps[None]:
        """Call it when all is done and the connection goes back to its pool: leave the session as it was.

        Without `prepares`, after an ordinary transaction.
        """
        del prepares
        yield from ()


def has_tables(names: Names) -> Steps[bool]:
    """Whether branches can leave marks: the inbox is there, and may be written.

    It writes nothing, and so waits for nobody: one that wrote and froze would stop all that begin after it.
    """
    inbox, dual = names.mapping()["inbox"], " FROM dual" if names.dialect == "mysql" else ""
    try:
        yield Query(f"INSERT INTO {inbox} (consumer, message_id) SELECT '', ''{dual} WHERE 1 = 0")
    except Exception as error:
        if is_missing_table(error) or is_denied(error) or code_of(error) == _UNKNOWN_DATABASE:
            return False
        raise
    return True


def milliseconds(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))
