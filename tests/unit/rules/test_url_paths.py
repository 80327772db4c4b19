"""One path, however it is spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.url_paths import path_spellings, without_trailing_slash


@pytest.mark.parametrize(
    "spelled",
    [
        *["/payments", "/payments/", "//payments", "/payments\n", "/payments \t\r\n", "/./payments", "/x/../payments"],
        *["/payments;a=b", "/payments;a=b/", "/%70ayments", "/payments%0a", "\\payments", "/\\payments", "payments"],
        *[
            "x/payments",
            "/payments//",
            "//x//..//payments;a\n",
            "/payments/.",
            "/payments%2f",
            "/payments\0",
            "%2Fpayments",
        ],
    ],
)
def test_K_2_a_path_is_known_however_it_is_spelled(spelled: str) -> None:
    assert "/payments" in path_spellings(spelled)


@pytest.mark.parametrize("other", ["/payment", "/payments2", "/x/payments", "/payments/7", "/pay/ments", "/"])
def test_another_path_is_another_one(other: str) -> None:
    assert "/payments" not in path_spellings(other)


def test_the_root_is_itself() -> None:
    assert without_trailing_slash("/") == without_trailing_slash("//") == "/"
    assert set(path_spellings("/")) == {"/"}


@given(st.text(st.sampled_from("/.;%2f\\\n ab\0")))
def test_a_path_is_among_its_spellings_which_are_few(path: str) -> None:
    found = list(path_spellings(path))
    assert path in found
    assert len(found) <= 256
