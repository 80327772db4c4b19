"""What lies outside docs/ and is linked from there: the pages that the site shows for it, and the links to them.

In the repository, `[outbox.py](../src/postroom/outbox.py)` leads to the file. On the site the same link leads to a page
with the file's text; a directory is a page that lists it; a Markdown file is a page as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PREFIX = "project"
_LANGUAGES = {
    ".py": "python",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".service": "ini",
    ".target": "ini",
    ".conf": "ini",
    ".sh": "sh",
    ".sql": "sql",
    ".Dockerfile": "dockerfile",
}
_FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)#\s]*)((?:#[^)\s]*)?\))")
_NOT_LISTED = {"__pycache__"}


def address_of(path: Path) -> str | None:
    """The page of the site (`guide/outbox.md`) that shows this file or directory; None if there is none."""
    if not path.exists() or not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix() if path.is_file() else None
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{PREFIX}/{inside}/README.md"
    return f"{PREFIX}/{inside}" if path.suffix == ".md" else f"{PREFIX}/{inside}.md"


def place_of(address: str) -> Path:
    """Where the page with this address is in the repository: the opposite of `address_of`."""
    if not address.startswith(f"{PREFIX}/"):
        return DOCS / address
    inside = ROOT / address.removeprefix(f"{PREFIX}/")
    if inside.exists():
        return inside
    return inside.parent if inside.name == "README.md" else inside.with_suffix("")


def with_links_of_the_site(markdown: str, address: str) -> str:
    """The page's text with each link out of docs/, or into it, as the site needs it."""
    folder = _folder_of(place_of(address))

    def rewritten(match: re.Match[str]) -> str:
        target = address_of(_resolved(folder, match[2])) if match[2] else None
        if target is None:
            return match[0]
        relative = os.path.relpath(target, str(PurePosixPath(address).parent))
        return f"{match[1]}{relative}{match[3]}"

    return outside_fences(markdown, lambda text: _LINK.sub(rewritten, text))


def linked_from(address: str, markdown: str) -> set[Path]:
    """The files and directories outside docs/ to which the page links."""
    folder = _folder_of(place_of(address))
    targets: set[Path] = set()

    def noted(text: str) -> str:
        targets.update(_resolved(folder, target) for _, target, _ in _LINK.findall(text) if target)
        return text

    outside_fences(markdown, noted)
    return {path for path in targets if (address_of(path) or "").startswith(f"{PREFIX}/")}


def page_of(path: Path) -> str:
    """The Markdown that shows a file or a directory outside docs/."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    begins = f"---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n\n# `{name}`\n\n"
    if path.is_dir():
        readme = path / "README.md"
        return readme.read_text(encoding="utf-8") if readme.exists() else begins + _listing(path)
    language = _LANGUAGES.get(path.suffix, "dockerfile" if path.name == "Dockerfile" else "text")
    return f"{begins}~~~~~~ {language}\n{path.read_text(encoding='utf-8')}\n~~~~~~\n"


def outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    """The text with everything but its code blocks changed."""
    parts: list[str] = []
    end = 0
    for block in _FENCED.finditer(markdown):
        parts += [change(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(markdown[end:])])


def _listing(directory: Path) -> str:
    entries = sorted(path for path in directory.rglob("*") if path.is_file() and not _NOT_LISTED & {*path.parts})
    return "".join(f"- [`{path.relative_to(directory)}`]({path.relative_to(directory)})\n" for path in entries)


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _resolved(folder: Path, target: str) -> Path:
    return Path(os.path.normpath(folder / target))
