"""The log of two-phase commits, without a database."""

from __future__ import annotations

import pytest

from postroom.store.sql.names import Names
from postroom.store.twophase.log import TwoPhaseLog


class Undone(Exception):
    """As a driver tells of a deadlock."""

    def __init__(self, code: str | int) -> None:
        super().__init__(code)
        self.sqlstate = code


@pytest.mark.parametrize(("dialect", "code"), [("postgresql", "40001"), ("postgresql", "40P01"), ("mysql", 1213)])
def test_a_decision_that_lost_a_deadlock_is_not_repeated(dialect: str, code: str | int) -> None:
    """The holder's work is gone with it: again, the decision would commit alone."""
    deciding = TwoPhaseLog(Names.of(dialect)).decide("tx", {}, 1)
    next(deciding)
    with pytest.raises(Undone):
        deciding.throw(Undone(code))
