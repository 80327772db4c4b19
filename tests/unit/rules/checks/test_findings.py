from __future__ import annotations

import pytest

from postroom.rules.checks import findings


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (59, "59 s"), (61, "1 min"), (3600, "1 h"), (47 * 3600, "47 h"), (8 * 86_400, "8 days")],
)
def test_times_are_told_in_the_unit_that_fits(seconds: float, words: str) -> None:
    assert findings.lasting(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"), [(900, "900 bytes"), (2048, "2 kB"), (1024 * 1536, "1.5 MB"), (3 * 1024**3, "3 GB")]
)
def test_sizes_too(size: int, words: str) -> None:
    assert findings.sized(size) == words


def test_long_lists_are_cut() -> None:
    assert findings.named("abcab") == "a, b, c"
    assert findings.named("abcde") == "a, b, c and 2 more"
    assert (findings.counted(1, "key"), findings.counted(2000, "key")) == ("1 key", "2,000 keys")
