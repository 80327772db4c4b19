"""The search of `tests/unit/rules/test_twophase_search.py` with more faults and more participants."""

import pytest

from tests.unit.rules.twophase_model.scenarios import LARGE
from tests.unit.rules.twophase_model.search import did_commit, search


@pytest.mark.parametrize("name", LARGE)
def test_T_1_T_2_whatever_happens_all_commit_or_nobody_and_recovery_finishes(name: str) -> None:
    found = search(LARGE[name])
    assert not found.wrong
    assert {did_commit(world) for world in found.ends} == {True, False}
