"""Charts as SVG, made on the server: no script, and colours by the style sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

WIDE, NARROW, HEIGHT = 720, 340, 180
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 10, 22
LINES = 2
"""Lines above the lowest."""


class Bar(NamedTuple):
    """One span of time."""

    start: datetime
    good: int
    bad: int


def throughput(bars: Sequence[Bar], label: str, *, narrow: bool = False) -> Markup:
    """What went well and what failed over time, one on top of the other; `narrow` for phones."""
    width, kind = (NARROW, "chart narrow") if narrow else (WIDE, "chart")
    top = nice(max((bar.good + bar.bad for bar in bars), default=0))
    wide, high = width - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / max(len(bars), 1)
    parts = [
        Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(kind, width, HEIGHT, label),
        *_lines(top, width),
    ]
    for n, bar in enumerate(bars):
        good, bad = high * bar.good / top, high * bar.bad / top
        x, broad = LEFT + n * step, max(step - 1, 1.0)
        floor = TOP + high
        parts.append(
            Markup(
                '<g><title>{}: {} done, {} failed</title><rect class="hit" x="{:.1f}" y="{}" width="{:.1f}" '
                'height="{}"/>'
            ).format(f"{bar.start:%H:%M}", f"{bar.good:,}", f"{bar.bad:,}", x, TOP, step, high)
        )
        if bar.good:
            parts.append(_rect("good", x, floor - good, broad, good))
        if bar.bad:
            parts.append(_rect("bad", x, floor - good - bad, broad, max(bad, 1.5)))
        parts.append(Markup("</g>"))
    parts += _times(bars, step, width)
    return Markup("").join([*parts, Markup("</svg>")])


def spark(counts: Sequence[int], label: str) -> Markup:
    """Counts over time, as small as a word."""
    wide, high = 120, 28
    top, step = max([*counts, 1]), wide / max(len(counts), 1)
    parts = [Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(wide, high, label)]
    for n, count in enumerate(counts):
        tall = max(high * count / top, 2.0) if count else 1.0
        parts.append(_rect("bad" if count else "none", n * step, high - tall, max(step - 1, 0.8), tall))
    return Markup("").join([*parts, Markup("</svg>")])


def nice(most: int) -> int:
    """A round number at the top of an axis, at least as large as what is shown, and a multiple of its lines."""
    magnitude = 1
    while True:
        for factor in (2, 4, 6, 10):
            if factor * magnitude >= most:
                return factor * magnitude
        magnitude *= 10


def _lines(top: int, width: int) -> list[Markup]:
    high = HEIGHT - TOP - BOTTOM
    found = []
    for n in range(LINES + 1):
        y = TOP + high - high * n / LINES
        found.append(
            Markup(
                '<line class="rule" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="axis end" x="{}" y="{:.1f}">{}</text>'
            ).format(LEFT, width - RIGHT, y, y, LEFT - 6, y + 4, _brief(top * n // LINES))
        )
    return found


def _times(bars: Sequence[Bar], step: float, width: int) -> list[Markup]:
    every = max(len(bars) // (6 if width == WIDE else 3), 1)
    days = bool(bars) and (bars[-1].start - bars[0].start).days >= 1
    return [
        Markup('<text class="axis" x="{:.1f}" y="{}">{}</text>').format(
            LEFT + n * step, HEIGHT - 6, f"{bar.start:%d %b}" if days else f"{bar.start:%H:%M}"
        )
        for n, bar in enumerate(bars)
        if n % every == 0 and LEFT + n * step < width - RIGHT - 30
    ]


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
        kind, x, y, width, height
    )


def _brief(value: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return str(value)
