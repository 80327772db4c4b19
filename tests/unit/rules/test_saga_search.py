"""Every state that a saga can come into, visited: nothing is done or undone twice, nothing is left behind or stuck.

The rules decide in it what runs next. What the tests of the rules cannot show is that the protocol around them needs
each of its parts: so each part is left out once, and the search must find what that breaks.
"""

from dataclasses import replace

import pytest

from postroom.rules.saga_plan import SagaOutcome
from tests.unit.rules.saga_model.scenarios import SMALL, WRONG
from tests.unit.rules.saga_model.search import search
from tests.unit.rules.saga_model.world import Mistake

BOTH = {SagaOutcome.COMPLETED, SagaOutcome.COMPENSATED}


@pytest.mark.parametrize("name", SMALL)
def test_S_1_whatever_happens_a_saga_is_done_once_or_undone_once_in_reverse(name: str) -> None:
    found = search(SMALL[name])
    assert not found.wrong
    assert found.ends == BOTH


@pytest.mark.parametrize("mistake", Mistake)
def test_S_4_the_search_finds_what_each_rule_of_the_protocol_is_for(mistake: Mistake) -> None:
    scenario = WRONG[mistake]
    assert not search(scenario).wrong
    assert search(replace(scenario, mistakes=frozenset({mistake}))).wrong
