"""What MySQL and Galera answer, where the tests' server is MariaDB: steps that are fed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postroom.errors import TwoPhaseUnavailable
from postroom.rules.twophase_ids import BranchId, bqual, gtrid, transaction_id
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Result, Steps, run
from postroom.store.twophase.mysql import MariaDBBranches, MySQLBranches

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = Names.of("mysql")
BRANCH = BranchId("0badcafe", transaction_id(1_800_000_000_000, "0123456789ab"), "bank", 7, 1_800_000_000)
GTRID, BQUAL = gtrid(BRANCH.scope, BRANCH.tx), bqual(BRANCH)


class Denied(Exception):
    """As a driver raises it."""


def answered(**answers: Any) -> Callable[[Query], Result]:
    """A server that answers statements by their first word, with underscores for spaces."""

    def execute(query: Query) -> Result:
        found: Any = next(
            (rows for start, rows in answers.items() if query.text.startswith(start.replace("_", " "))), []
        )
        if isinstance(found, Exception):
            raise found
        return Result(found)

    return execute


def checked(*, prepares: bool = True, **answers: Any) -> MySQLBranches:
    return run(MySQLBranches.check(NAMES, prepares=prepares), answered(**answers))


def test_the_server_says_which_kind_it_is() -> None:
    assert type(checked(SELECT_VERSION=[("8.4.3",)])) is MySQLBranches
    assert type(checked(SELECT_VERSION=[(b"10.11.19-MariaDB",)])) is MariaDBBranches


def test_a_galera_cluster_has_no_xa() -> None:
    cluster: dict[str, Any] = {"SELECT_VERSION": [("11.4.2-MariaDB",)], "SHOW_VARIABLES": [("wsrep_on", "ON")]}
    with pytest.raises(TwoPhaseUnavailable, match=r"wsrep_on = ON"):
        checked(**cluster)
    holder = checked(prepares=False, **cluster)
    sent: list[str] = []

    def execute(query: Query) -> Result:
        sent.append(query.text)
        return Result([(7, 28800, 50, 0)] if query.text.startswith("SELECT") else [])

    run(holder.begin_plain("tx", 30), execute)
    for step in (holder.confirm, holder.commit, holder.roll_back_plain):
        run(step("tx"), execute)
    assert sent[-3:] == ["RELEASE SAVEPOINT postroom_twophase", "COMMIT", "ROLLBACK"]
    assert not any("XA" in text for text in sent)


def test_a_user_who_may_not_list_branches_is_told_the_grant() -> None:
    denied = Denied(1401, "XAER_RMERR: Fatal error occurred in the transaction branch")
    with pytest.raises(TwoPhaseUnavailable, match="GRANT XA_RECOVER_ADMIN"):
        checked(SELECT_VERSION=[("8.4.3",)], XA_RECOVER=denied)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (MySQLBranches, f"0x{(GTRID + BQUAL).hex().upper()}"),
        (MariaDBBranches, f"X'{GTRID.hex()}',X'{BQUAL.hex()}',20562"),
        (MariaDBBranches, f"'{GTRID.decode()}','{BQUAL.decode()}',20562"),
    ],
)
def test_every_form_of_a_listed_branch_is_read(kind: type[MySQLBranches], data: str) -> None:
    rows = [(20562, len(GTRID), len(BQUAL), data), (1, 1, 1, "0x4142" if kind is MySQLBranches else "'it''s','',1")]
    steps: Steps[Any] = kind(NAMES, witness=True).listed(BRANCH.scope)
    [found] = run(steps, answered(XA_RECOVER=rows))
    assert found == (BRANCH.text, BRANCH)


def test_an_id_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="'other' is not the id of a branch"):
        run(MySQLBranches(NAMES, witness=True).commit_prepared("other"), answered())
