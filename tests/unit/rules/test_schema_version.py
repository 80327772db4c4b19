"""Which code works with which tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.schema_version import BEGUN, Fit, fit


@pytest.mark.parametrize(
    ("listed", "version", "expected"),
    [
        ([], 4, Fit.UNFINISHED),
        ([BEGUN], 4, Fit.UNFINISHED),
        ([4], 4, Fit.FITS),
        ([4, 5], 4, Fit.FITS),
        ([4, 5], 5, Fit.FITS),
        ([BEGUN, 4], 4, Fit.FITS),
        ([3], 4, Fit.OUTDATED),
        ([3, 4], 5, Fit.OUTDATED),
        ([5], 4, Fit.NEWER),
        ([5, 6], 4, Fit.NEWER),
        ([3, 5], 4, Fit.NEWER),
    ],
)
def test_the_listed_versions_fit(listed: list[int], version: int, expected: Fit) -> None:
    assert fit(listed, version) is expected


@given(st.sets(st.integers(1, 9), min_size=1), st.integers(1, 9))
def test_code_runs_exactly_on_tables_that_list_it(listed: set[int], version: int) -> None:
    found = fit(listed, version)
    assert (found is Fit.FITS) == (version in listed)
    if found is Fit.OUTDATED:
        assert fit({*listed, version}, version) is Fit.FITS
