"""MkDocs calls these functions as it builds the site: see `mkdocs.yml`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, InclusionLevel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # MkDocs loads this file by its path, from any directory

from scripts.site import diagrams, llms, repository

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.postroom")
_texts: dict[str, str] = {}
_sections: list[tuple[str, list[Page]]] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """`decisions/*` in the navigation stands for every page of that directory."""
    config.nav = _expanded(config.nav or [])
    _texts.clear()
    _sections.clear()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for what the pages link to outside docs/, and for what those pages link to."""
    ahead = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    ahead += [(address, "") for address in _addresses(config.nav or [])]
    known = {address for address, _ in ahead if not address.startswith(f"{repository.PREFIX}/")}
    while ahead:
        address, text = ahead.pop()
        wanted = repository.linked_from(address, text)
        if address not in known and address.startswith(f"{repository.PREFIX}/"):
            wanted.add(repository.place_of(address))
        for path in wanted:
            target = repository.address_of(path) or ""
            if target and target not in known:
                known.add(target)
                content = repository.page_of(path)
                files.append(File.generated(config, target, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
                if path.suffix == ".md" or path.is_dir():
                    ahead.append((target, content))
    return files


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Remember which page belongs to which tab."""
    _sections.extend((item.title or "", _pages_in(item)) for item in nav.items)
    return nav


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as the site needs them, and drawings in place of diagrams."""
    _texts[page.file.src_uri] = markdown
    missing: list[str] = []
    drawn = diagrams.drawn(repository.with_links_of_the_site(markdown, page.file.src_uri), missing)
    for diagram in missing:
        log.warning("%s: no drawing of the diagram %.40r…: run `make diagrams`", page.file.src_uri, diagram)
    return drawn


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, llms-full.txt, and each page as the Markdown that it is made from."""
    site = Path(config.site_dir)
    base = (config.site_url or "").rstrip("/")
    sections = [llms.Section(title, [_as_text(page, base) for page in pages]) for title, pages in _sections]
    for page in (page for _, pages in _sections for page in pages):
        target = site / page.file.src_uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_texts[page.file.src_uri], encoding="utf-8")
    about = (config.site_name, config.site_description or "", sections)
    (site / "llms.txt").write_text(llms.index(*about), encoding="utf-8")
    (site / "llms-full.txt").write_text(llms.full(*about), encoding="utf-8")


def _as_text(page: Page, base: str) -> llms.TextPage:
    address = f"{base}/{page.file.src_uri}" if base else page.file.src_uri
    return llms.TextPage(address, page.title or "", _texts[page.file.src_uri])


def _expanded(entries: list[Any]) -> list[Any]:
    expanded: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            expanded.append(
                {key: _expanded(value) if isinstance(value, list) else value for key, value in entry.items()}
            )
        elif entry.endswith("/*"):
            expanded += _pages_of(repository.DOCS / entry.removesuffix("/*"))
        else:
            expanded.append(entry)
    return expanded


def _pages_of(folder: Path) -> list[str]:
    """The directory's pages: its README first, the others in the order in which that names them."""
    overview = (folder / "README.md").read_text(encoding="utf-8")
    found = [path.name for path in folder.glob("*.md") if path.name != "README.md"]
    found.sort(key=lambda name: (overview.find(f"({name})") % sys.maxsize, name))  # what it does not name comes last
    return [(folder / name).relative_to(repository.DOCS).as_posix() for name in ("README.md", *found)]


def _addresses(entries: list[Any]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        values = list(entry.values()) if isinstance(entry, dict) else [entry]
        for value in values:
            found += _addresses(value) if isinstance(value, list) else [value]
    return found


def _pages_in(item: Any) -> list[Page]:
    if item.is_page:
        return [item]
    return [page for child in item.children or [] for page in _pages_in(child)]
