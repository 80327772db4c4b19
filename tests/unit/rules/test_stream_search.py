"""Every state that the stream's protocol can come into, visited: all is sent, in order, and nothing is confirmed early.

What the tests of the rules cannot show is that the protocol around them needs each of its parts: so each part is left
out once, and the search must find what that breaks.
"""

from dataclasses import replace

import pytest

from tests.unit.rules.stream_model.scenarios import SCENARIOS, WRONG
from tests.unit.rules.stream_model.search import search
from tests.unit.rules.stream_model.world import Mistake


@pytest.mark.parametrize("name", SCENARIOS)
def test_R_7_whatever_happens_all_is_sent_in_order(name: str) -> None:
    found = search(SCENARIOS[name])
    assert not found.wrong
    assert found.ends


@pytest.mark.parametrize("mistake", Mistake)
def test_R_7_the_search_finds_what_each_part_of_the_protocol_is_for(mistake: Mistake) -> None:
    assert search(replace(WRONG[mistake], mistakes=frozenset({mistake}))).wrong
