"""Settling: list a database's branches, and finish those that are decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.twophase_ids import read_gid
from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_settling import Again, Confirmed, Said, Settling, after, meaning, witness
from postroom.store.sql.db_errors import code_of, is_lost_connection
from postroom.store.twophase.branch_kinds import BRANCHES
from postroom.store.twophase.branches import WITNESS_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps
    from postroom.store.twophase.branches import Branches
    from postroom.twophase.lines import Line, Opener

KEPT = WITNESS_KEPT - 86_400.0
"""Seconds after the deadline for which the inbox surely has the mark, which is made up to a day before that."""


class Ended(NamedTuple):
    """A branch whose transaction is decided."""

    tx: str
    id: str
    decision: Decision
    age: float
    """Seconds since its deadline; below zero before it."""


def list_branches(names: Callable[[str], Names], opener: Opener, scope: str, line: Line) -> Steps[list[str]]:
    """The ids of prepared branches that belong to the log with this scope."""
    branches = yield from _branches(names, opener, line)
    return [one.id for one in (yield from branches.listed(scope))]


def finish(
    names: Callable[[str], Names], opener: Opener, ends: Sequence[Ended], line: Line
) -> Steps[dict[str, Settling]]:
    """Commit these branches or roll them back, one after another; returns what became of each, by transaction.

    A connection that is lost ends it: what is missing in the result is to be tried again.
    """
    branches = yield from _branches(names, opener, line)
    results: dict[str, Settling] = {}
    for end in ends:
        try:
            settling = yield from _finish(branches, end)
        except Exception as error:
            if is_lost_connection(error) or isinstance(error, OSError):
                raise
            settling = Again()  # one that cannot be judged keeps no other from its end
        earlier = results.get(end.tx, Confirmed())
        results[end.tx] = settling if isinstance(earlier, Confirmed) else earlier
    return results


def _finish(branches: Branches, end: Ended) -> Steps[Settling]:
    said = Said.BUSY if (yield from branches.is_attached(end.id)) else (yield from _said(branches, end))
    branch = read_gid(end.id)
    seen = None
    if said in {Said.DONE, Said.GONE, Said.ROLLED_BACK} and branches.witness and branch is not None and branch.marked:
        marked = yield from branches.is_marked(end.id)
        seen = witness(marked=marked, age=end.age, kept=KEPT)
    settling = after(end.decision, said, witness=seen, past_deadline=end.age >= 0)
    if isinstance(settling, Again) and settling.kill:
        yield from branches.kill(end.id)
    return settling


def _said(branches: Branches, end: Ended) -> Steps[Said]:
    """Have a branch commit or roll back; returns what its database says."""
    act = branches.commit_prepared if end.decision is Decision.COMMIT else branches.roll_back_prepared
    try:
        yield from act(end.id)
    except Exception as error:
        if is_lost_connection(error) or isinstance(error, OSError):
            raise
        code = code_of(error)
    else:
        return Said.DONE
    branch = read_gid(end.id)
    listed = branch is not None and any(one.id == end.id for one in (yield from branches.listed(branch.scope)))
    return meaning(code, listed=listed)


def _branches(names: Callable[[str], Names], opener: Opener, line: Line) -> Steps[Branches]:
    branches = opener.branches.get(True) or opener.branches.get(False)
    if branches is None:  # to list and to end branches, a database need not be able to prepare others
        check = BRANCHES[line.dialect].check(names(line.dialect), prepares=False)
        branches = opener.branches[False] = yield from check
    return branches
