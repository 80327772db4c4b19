from __future__ import annotations

import pytest

from postroom.rules.checks import unfinished
from postroom.rules.checks.findings import Verdict
from postroom.rules.checks.unfinished import Prepared, Unsettled

OK, WARN, FAIL, SKIP = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIP


def test_sagas() -> None:
    assert unfinished.parked({}).verdict is OK
    assert unfinished.parked({"place_order": 2}).evidence == "2 sagas parked: 2 place_order"
    assert unfinished.stranded({}).verdict is OK
    assert unfinished.stranded({"place_order": 1}).verdict is FAIL


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Unsettled(), OK),
        (Unsettled(undecided=1, oldest_seconds=10), OK),
        (Unsettled(undecided=1, oldest_seconds=400), WARN),
        (Unsettled(open=1, oldest_seconds=4000), FAIL),
        (Unsettled(stuck=1, example="x"), FAIL),
    ],
)
def test_two_phase_commits(found: Unsettled, verdict: Verdict) -> None:
    assert unfinished.in_doubt(found).verdict is verdict


@pytest.mark.parametrize(
    ("left", "verdict", "remedy"),
    [
        ([], OK, ""),
        ([Prepared("a", 5, is_ours=True)], OK, ""),
        ([Prepared("a", 500, is_ours=True)], FAIL, "recover"),
        ([Prepared("a", 500, is_ours=False)], FAIL, "ROLLBACK PREPARED"),
        ([Prepared("a", None, is_ours=False)], WARN, "XA ROLLBACK"),
    ],
)
def test_prepared_transactions(left: list[Prepared], verdict: Verdict, remedy: str) -> None:
    finding = unfinished.prepared(left)
    assert (finding.verdict, remedy in finding.remedy) == (verdict, True)
