"""Mermaid diagrams as drawings, so that a page of the site needs neither a script nor another server.

A drawing is found by the hash of its diagram's text. `make diagrams` draws what is missing and removes what no page
has any more; it is the only part that needs a network (for Mermaid itself) and a browser.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from scripts.site.repository import DOCS

if TYPE_CHECKING:
    from pathlib import Path

DRAWINGS = DOCS / "diagrams"
READABLE, TOLERABLE = 0.6, 0.45
"""The scale at which text is easy to read, and the one that is tolerable where the whole drawing then fits a column."""
COLUMN = 748
"""Pixels that a column of text has on a wide screen."""
_WIDTH = re.compile(r'viewBox="\S+ \S+ ([\d.]+) ')
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def drawing_of(diagram: str) -> Path:
    """Where the diagram's drawing is, or will be."""
    return DRAWINGS / f"{hashlib.sha256(diagram.encode()).hexdigest()[:16]}.svg"


def drawn(markdown: str, missing: list[str]) -> str:
    """The page with each diagram's drawing in its place. Diagrams without one stay, and are added to ``missing``."""

    def replaced(match: re.Match[str]) -> str:
        path = drawing_of(match[1])
        if not path.exists():
            missing.append(match[1])
            return match[0]
        svg = path.read_text(encoding="utf-8").strip()
        width = _WIDTH.search(svg)
        pixels = float(width[1]) if width else 0.0
        kind = "diagram wide" if pixels * TOLERABLE > COLUMN else "diagram"
        return f'<figure class="{kind}" style="--least: {pixels * READABLE:.0f}px">{svg}</figure>'

    return DIAGRAM.sub(replaced, markdown)
