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
LEAST_SCALE = 0.45
"""Smaller than this nobody can read the text: the page scrolls the drawing instead."""
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
        least = f"--least: {float(width[1]) * LEAST_SCALE:.0f}px" if width else ""
        return f'<figure class="diagram" style="{least}">{svg}</figure>'

    return DIAGRAM.sub(replaced, markdown)
