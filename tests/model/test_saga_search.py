"""The search of `tests/unit/rules/test_saga_search.py` with more faults and longer sagas."""

import pytest

from postroom.rules.saga_plan import SagaOutcome
from tests.unit.rules.saga_model.scenarios import LARGE
from tests.unit.rules.saga_model.search import search


@pytest.mark.parametrize("name", LARGE)
def test_S_1_whatever_happens_a_saga_is_done_once_or_undone_once_in_reverse(name: str) -> None:
    found = search(LARGE[name])
    assert not found.wrong
    assert found.ends == {SagaOutcome.COMPLETED, SagaOutcome.COMPENSATED}
