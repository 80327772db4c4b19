"""How values look on the dashboard's pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from postroom.web.dashboard.charts import Bar, nice, spark, throughput
from postroom.web.dashboard.formats import ago, brief, counted, duration, moment, number, readable, short, size, ticked

NOW = datetime(2026, 5, 17, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "250 ms"), (59, "59 s"), (60, "1 min"), (3725, "1 h 2 min"), (90_000, "1 d 1 h")],
)
def test_spans_of_time(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert text.startswith(brief(seconds))


def test_times() -> None:
    assert "2026-05-17 12:00:00" in moment(NOW)
    assert moment(None) == ago(None) == short(None)
    assert "1 h ago" in ago(datetime.now(UTC) - timedelta(hours=1, seconds=1))
    assert ">in 59 min" in ago(datetime.now(UTC) + timedelta(hours=1))


def test_numbers_and_sizes() -> None:
    assert (number(1234), counted(1, "key"), counted(2000, "try", "tries")) == ("1,234", "1 key", "2,000 tries")
    assert (size(12), size(2048), size(3 * 1024 * 1024)) == ("12 bytes", "2.0 kB", "3.0 MB")
    assert short("01a1eb10-74c7-720d-8c25-80e68eaa5ad2") == "…8eaa5ad2"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b'{"a":1}', '{\n  "a": 1\n}'),
        (b"plain", "plain"),
        (b"\xff\x00\x01\x02\x03", "ff 00010203"),
        (b"[" * 100_000, "[" * 100_000),
        (None, ""),
    ],
)
def test_payloads_are_readable(payload: bytes | None, text: str) -> None:
    assert readable(payload) == text


def test_commands_in_sentences_are_code_and_nothing_else_is() -> None:
    assert ticked("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert ticked("a ` b <i>") == "a ` b &lt;i&gt;"


def test_charts_hold_numbers_and_no_style() -> None:
    bars = [Bar(NOW + timedelta(minutes=n), n * 10, n % 2) for n in range(60)]
    for drawn in (
        throughput(bars, '"><b>'),
        throughput(bars, "x", narrow=True),
        throughput([], "x"),
        spark([0, 3], "y"),
    ):
        assert "style=" not in drawn
        assert "<b>" not in drawn
        assert drawn.startswith("<svg")
    assert throughput(bars, "x").count('class="good"') == 59
    assert [nice(most) for most in (0, 3, 7, 61, 999, 1001)] == [2, 4, 10, 100, 1000, 2000]
