"""SQLite in a two-phase commit: it cannot prepare, and so can only hold the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from postroom.errors import TwoPhaseUnavailable
from postroom.store.sql.dialect import SQLite
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import Branches, Ended

if TYPE_CHECKING:
    from postroom.store.sql.names import Names
    from postroom.store.twophase.branches import Listed

_SAVEPOINT = "postroom_twophase"
_FULL = 2
"""Of PRAGMA synchronous: below it, a power cut may take a decision back that others have acted on."""


class SQLiteBranches(Branches):
    can_prepare = False

    def __init__(self, names: Names, *, witness: bool, synchronous: int = _FULL) -> None:
        super().__init__(names, witness=witness)
        self._synchronous = synchronous

    @classmethod
    def check(cls, names: Names, *, prepares: bool = True) -> Steps[Self]:
        if prepares:
            raise TwoPhaseUnavailable(
                "SQLite cannot prepare a transaction: make this database the log's (log=…), which only one can be, or "
                "use a saga"
            )
        [[synchronous]] = (yield Query("PRAGMA synchronous")).rows
        return cls(names, witness=False, synchronous=int(synchronous))

    def begin_plain(self, identity: str, seconds_left: float, isolation: str | None = None) -> Steps[None]:
        del identity, seconds_left, isolation
        if self._synchronous < _FULL:
            yield Query(f"PRAGMA synchronous = {_FULL}")
        yield Query(SQLite.begin)
        yield Query(f"SAVEPOINT {_SAVEPOINT}")

    def confirm(self, identity: str) -> Steps[None]:
        del identity
        try:
            yield Query(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except Exception as error:
            if "no such savepoint" in str(error):
                raise Ended from error
            raise

    def restore(self, *, prepares: bool = True) -> Steps[None]:
        del prepares
        if self._synchronous < _FULL:
            yield Query(f"PRAGMA synchronous = {self._synchronous}")

    def listed(self, scope: str) -> Steps[list[Listed]]:
        del scope
        yield from ()
        return []
