from __future__ import annotations

import pytest

from postroom.rules.checks import schema
from postroom.rules.checks.findings import Verdict

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL


@pytest.mark.parametrize(
    ("found", "has_tables", "verdict", "remedy"),
    [
        (4, True, OK, ""),
        (None, False, FAIL, schema.INIT),
        (None, True, WARN, schema.INIT),
        (0, True, FAIL, schema.INIT),
        (3, True, FAIL, schema.INIT),
        (5, True, FAIL, "upgrade postroom"),
    ],
)
def test_the_version(found: int | None, has_tables: bool, verdict: Verdict, remedy: str) -> None:  # noqa: FBT001 - an example
    finding = schema.version(found, 4, has_tables=has_tables)
    assert (finding.verdict, finding.remedy) == (verdict, remedy)


def test_what_belongs_to_the_tables() -> None:
    assert schema.tables([], 14).verdict is OK
    assert "12 tables" in schema.tables([], 14, hidden=2).evidence
    assert schema.tables(["table outbox"], 14).evidence == "missing: table outbox"
    assert schema.view(None).verdict is OK
    assert schema.view("no such view").verdict is FAIL
    assert schema.lanes({"default": 16}, 16).verdict is OK
    assert schema.lanes({"default": 16, "a": 2}, 16).evidence == "lanes are missing: queue a has 2 of 16"
    assert schema.storage({"fillfactor": "45"}, {"fillfactor": "45"}, "mend it").verdict is OK
    different = schema.storage({"a": "1"}, {"a": "2", "b": "3"}, "mend it")
    assert (different.evidence, different.remedy) == (
        "storage parameters: a is 1 instead of 2, b is not set instead of 3",
        "mend it",
    )
    assert schema.guards([]).verdict is OK
    assert schema.guards(["outbox_check"]).verdict is WARN


@pytest.mark.parametrize(
    ("there", "is_ours", "is_public", "verdict"),
    [(True, True, False, OK), (False, False, False, FAIL), (True, False, False, WARN), (True, True, True, WARN)],
)
def test_the_function(there: bool, is_ours: bool, is_public: bool, verdict: Verdict) -> None:  # noqa: FBT001 - an example
    assert schema.function(there=there, is_ours=is_ours, is_public=is_public).verdict is verdict


def test_privileges_are_named_for_what_they_are_missing_for() -> None:
    assert schema.privileges({"relay": []}, "ada").verdict is OK
    lacks = {"relay": [], "operator": ["DELETE on outbox"], "ledger": ["INSERT on idempotency"]}
    lacking = schema.privileges(lacks, "ada")
    assert lacking.evidence.startswith("the user lacks privileges for operator: DELETE on outbox; for ledger")
    assert "`postroom schema --grants ada --for operator --for ledger`" in lacking.remedy
    assert "--grants ROLE" in schema.privileges(lacks, "").remedy
    assert schema.no_privileges().verdict is Verdict.SKIP
