"""Plots as SVG: lines over a logarithmic axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 44, 36, 48
COLOURS = ("#2563eb", "#d97706", "#059669")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#374151}.rule{stroke:#e5e7eb}"
    ".end{text-anchor:end}.middle{text-anchor:middle}"
)


class Line(NamedTuple):
    """One line, with a dot for each point."""

    name: str
    points: list[tuple[float, float]]


def plot(across: str, up: str, lines: Sequence[Line]) -> str:
    """Lines over a logarithmic axis; the other one begins at 0."""
    xs = [math.log10(x) for line in lines for x, _ in line.points]
    low, high = min(xs), max(*xs, min(xs) + 0.1)
    top = _round_up(max(y for line in lines for _, y in line.points))

    def place(x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + wide * (math.log10(x) - low) / (high - low), TOP + tall * (1 - y / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(up)} over {escape(across)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22">{escape(up)}</text>',
        f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}">{escape(across)}</text>',
    ]
    for n in range(5):
        _, y = place(10**low, top * n / 4)
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{top * n / 4:,.0f}</text>')
    parts += [
        f'<text class="middle" x="{place(x, 0)[0]:.1f}" y="{HEIGHT - 28}">{x:,.0f}</text>'
        for x in sorted({x for line in lines for x, _ in line.points})
    ]
    for n, (line, colour) in enumerate(zip(lines, COLOURS, strict=False)):
        places = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        if len(lines) > 1:
            x = WIDTH - RIGHT - 110 * (len(lines) - n)
            parts.append(f'<circle cx="{x}" cy="18" r="4" fill="{colour}"/>')
            parts.append(f'<text x="{x + 10}" y="22">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _round_up(value: float) -> float:
    """A round number that is at least as large."""
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(factor * magnitude for factor in (1, 2, 4, 6, 8, 10) if factor * magnitude >= value)
