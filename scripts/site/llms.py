"""llms.txt and llms-full.txt: the documentation for programs that read text (https://llmstxt.org)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TextPage:
    """A page as text: its address on the site, its title, and its Markdown."""

    address: str
    title: str
    markdown: str

    @property
    def summary(self) -> str:
        """The first sentence of the first paragraph, without its links."""
        for block in re.split(r"\n\s*\n", self.markdown):
            text = " ".join(block.split())
            if text and not text.startswith(("#", "```", "|", "-", "<", "!", ":::", "1.", "---")):
                return re.split(r"(?<=[.:])\s", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))[0].rstrip(":")
        return ""


@dataclass(frozen=True)
class Section:
    """What one tab of the site holds."""

    title: str
    pages: list[TextPage] = field(default_factory=list)


def index(name: str, description: str, sections: list[Section]) -> str:
    """`llms.txt`: every page with its address and a sentence."""
    lines = [f"# {name}", "", f"> {description}"]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        lines += [
            f"- [{page.title}]({page.address}){': ' if page.summary else ''}{page.summary}" for page in section.pages
        ]
    return "\n".join(lines) + "\n"


def full(name: str, description: str, sections: list[Section]) -> str:
    """`llms-full.txt`: the text of every page, one after the other."""
    pages = [page for section in sections for page in section.pages]
    texts = [f"<!-- {page.address} -->\n\n{page.markdown.strip()}\n" for page in pages]
    return "\n".join([f"# {name}\n\n> {description}\n", *texts])
