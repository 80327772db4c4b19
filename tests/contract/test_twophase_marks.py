"""Marks: how recovery tells a branch that has committed from one that somebody rolled back by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_settling import Again, Confirmed, Quarantine, Settling, Trouble
from postroom.store.sql.names import Names
from postroom.store.twophase.branch_kinds import BRANCHES
from postroom.twophase.errands import Errand
from postroom.twophase.openers import opener_of
from postroom.twophase.settling import Ended, finish
from tests.contract.twophase_support import Wire, begun_with_a_row, wires
from tests.contract.twophase_ways import url_text
from tests.contract.waiting import wait_until

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps
    from postroom.twophase.lines import Line
    from tests.contract.write_support import Database, Databases

NO_TABLES = {"postgresql": Names.of("postgresql", "nowhere"), "mysql": Names.of("mysql", None, "nowhere_")}


@pytest.mark.parametrize(("driver", "kind"), [("psycopg", "postgresql"), ("PyMySQL", "mariadb")])
def test_T_2_only_a_branch_that_leaves_a_mark_is_missed_without_it(
    driver: str, kind: str, databases: Databases
) -> None:
    database = databases[kind]
    names = database.store.names
    with wires(driver, database, 1) as [wire]:
        committed, rolled_back = ended(wire), ended(wire, "roll_back_prepared")
        wire.branches = wire.run(BRANCHES[names.dialect].check(NO_TABLES[names.dialect]))
        before_the_inbox = ended(wire)
    results = {branch: recovered(database, branch) for branch in (committed, rolled_back, before_the_inbox)}
    assert results == {
        committed: Confirmed(),
        rolled_back: Quarantine(Trouble.DAMAGED),
        before_the_inbox: Confirmed(),  # there is an inbox by now, without its mark
    }


def ended(wire: Wire, act: str = "commit_prepared") -> str:
    """A branch that was prepared, and that somebody has ended."""
    branch, _ = begun_with_a_row(wire)
    wire.run(wire.branches.prepare(branch))
    wire.run(getattr(wire.branches, act)(branch))
    return branch


def recovered(database: Database, branch: str) -> Settling:
    """What recovery makes of it, on the decision to commit."""
    opener = opener_of(url_text(database.url), "bank")

    def settle(line: Line) -> Steps[dict[str, Settling]]:
        return finish(lambda _: database.store.names, opener, [Ended("tx", branch, Decision.COMMIT, 1.0)], line)

    def look() -> bool:
        settled.append(Errand(opener, settle).run()["tx"])
        return not isinstance(settled[-1], Again)  # as long as MariaDB knows the connection that prepared it

    settled: list[Settling] = []
    wait_until(look)
    opener.close()
    return settled[-1]
