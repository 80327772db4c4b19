"""States as SQL: written in one place, and always in the words of the schema's partial indexes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import postroom
from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.ordering import Order
from postroom.store.admin.cancellation import Cancellation
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.schema.ddl import table_statements
from postroom.store.sql import states
from postroom.store.sql.names import Names

BARE = re.compile(r"\bstate (=|<|>|<>|IN|BETWEEN|NOT BETWEEN) \(?\d")


def test_no_other_module_writes_a_state_as_a_number() -> None:
    sources = Path(postroom.__file__).parent
    found = [
        f"{path.relative_to(sources)}:{number}: {line.strip()}"
        for path in sources.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BARE.search(line)
    ]
    assert found == []


def test_conditions_name_the_table_if_they_are_told_its_alias() -> None:
    assert states.ready() == "state = 0"
    assert states.ready("d") == "d.state = 0"
    assert states.comes_due("d") == "d.state IN (1, 2)"
    assert states.dead("d") == "d.state = 3"
    assert states.unsettled() == "state IN (0, 1, 2, 3)"
    assert states.in_states([Stored.RETRY], "d") == "d.state = 2"


def test_what_holds_a_key_is_said_in_the_words_of_the_index() -> None:
    [index] = [one for one in table_statements(Names.of("sqlite", None, None)) if "outbox_delivery_key" in one]
    assert index.endswith(f"WHERE {states.holds_key(Order.HOLD)}")
    assert states.holds_key(Order.HOLD, "b") == "b.state IN (2, 3)"
    assert states.holds_key(Order.SKIP, "b") == "b.state IN (2, 3) AND +b.state = 2"


def test_what_comes_due_is_said_in_the_words_of_the_index() -> None:
    [index] = [one for one in table_statements(Names.of("sqlite", None, None)) if "outbox_delivery_due" in one]
    assert index.endswith(f"WHERE {states.comes_due()}")


def test_a_transition_says_what_it_applies_to_and_what_it_writes() -> None:
    assert (states.before(Transition.REQUEUE), states.becomes(Transition.REQUEUE)) == ("state = 3", "state = 2")
    assert states.before(Transition.COME_DUE, "d") == "d.state IN (1, 2)"
    assert states.becomes(Transition.COME_DUE) == "state = 0"


def test_a_transition_that_leaves_no_delivery_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="DISCARD leaves no delivery: delete the row"):
        states.becomes(Transition.DISCARD)


def test_an_act_of_an_operator_looks_where_its_transition_applies() -> None:
    assert {*DeadLetters.states} == {*Transition.REQUEUE.stored} == {*Transition.DISCARD.stored}
    assert {*Cancellation.states} == {*Transition.CANCEL.stored}
