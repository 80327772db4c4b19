"""Every state that a two-phase commit can come into, visited: all commit or nobody, and recovery alone finishes it.

The rules decide in it what comes next. What the tests of the rules cannot show is that the protocol around them needs
each of its parts: so each part is left out once, and the search must find what that breaks.
"""

from dataclasses import replace

import pytest

from tests.unit.rules.twophase_model.scenarios import SMALL, WRONG
from tests.unit.rules.twophase_model.search import did_commit, search
from tests.unit.rules.twophase_model.world import Mistake


@pytest.mark.parametrize("name", SMALL)
def test_T_1_T_2_whatever_happens_all_commit_or_nobody_and_recovery_finishes(name: str) -> None:
    found = search(SMALL[name])
    assert not found.wrong
    assert {did_commit(world) for world in found.ends} == {True, False}


@pytest.mark.parametrize("mistake", Mistake)
def test_T_2_the_search_finds_what_each_rule_of_the_protocol_is_for(mistake: Mistake) -> None:
    scenario = WRONG[mistake]
    assert not search(scenario).wrong
    assert search(replace(scenario, mistakes=frozenset({mistake}))).wrong
