"""What the journal of a relay makes of calls that could not be made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from postroom.runtime.calls import CannotCall
from postroom.saga.running.journal import NotBegun
from postroom.saga.running.stored_journal import StoredJournal


class Unreachable:
    """As `Calls` while the database is away."""

    async def run(self, _call: object, _blocking: object, _waiting: object) -> Any:
        raise CannotCall("the database is away")


class Begun:
    """As much of a `StepCall` as matters."""

    step, timeout, has_returned = "charge", 30.0, False

    def __init__(self, *, is_in_function: bool) -> None:
        self.is_in_function = is_in_function


@pytest.mark.parametrize(("begun", "raised"), [(True, ConnectionError), (False, NotBegun)])
async def test_S_4_a_call_that_was_begun_counts_as_tried(begun: bool, raised: type[Exception]) -> None:  # noqa: FBT001 - a parameter of the test
    """Otherwise the next attempt would be taken for the first, and if refused the call would not be undone."""
    nothing = cast("Any", None)
    journal = StoredJournal(nothing, nothing, nothing, cast("Any", Unreachable()), nothing)
    with pytest.raises(raised, match="the database is away"):
        await journal.run_call(cast("Any", Begun(is_in_function=begun)))
