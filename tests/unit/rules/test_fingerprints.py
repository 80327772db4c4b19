"""Fingerprints of errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.fingerprints import fingerprint, spread


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no account 4711 in shop 'Köln'", "no account … in shop …"),
        ('key "a-1" is not valid', "key … is not valid"),
        ("order 0192f3a4-9d7e-7cc0-8c4e-1f0a2b3c4d5e was refused", "order … was refused"),
        ("digest deadbeef01 of facade differs", "digest … of facade differs"),
        ("10.0.0.7:5432 timed out after 30.5 s at 12:30:01", "… timed out after … s at …"),
        ("it can't be, and won't", "it can't be, and won't"),
        ("", ""),
    ],
)
def test_what_differs_from_failure_to_failure_is_replaced(message: str, expected: str) -> None:
    assert fingerprint(message) == expected
    assert fingerprint(expected) == expected


DIGITS = str.maketrans("023456789", "1" * 9)


@given(st.text("0123456789abxf'\"`-:. ü", max_size=40))
def test_errors_that_differ_in_digits_alone_have_one_fingerprint_but_for_hexadecimal_ones(message: str) -> None:
    """Databases group errors by this before they are told."""
    if "0x" not in message:
        assert fingerprint(message) == fingerprint(message.translate(DIGITS))


def test_counts_are_spread_over_equal_buckets_from_the_first_to_the_last() -> None:
    assert spread({10: 1, 11: 2, 33: 4}, 10, 33, 24) == (1, 2, *[0] * 21, 4)
    assert spread({10: 1, 57: 4}, 10, 57, 24) == (1, *[0] * 22, 4)
    assert spread({10: 1}, 10, 10, 3) == (1, 0, 0)
    assert spread({9: 1, 99: 2}, 10, 12, 3) == (1, 0, 2)
