"""The documentation site builds strictly, holds every page and every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.acceptance import documents
from tests.services.chromium import Chromium
from tests.services.databases import need

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = documents.ROOT
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "postroom"
INTERNAL = {"postroom.cli.demo", "postroom.web.dashboard"}
"""Modules that have an `__all__` for Postroom itself; `postroom.web` has the names of the second."""
BUILD_SECONDS = 300
expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as mike publishes it: version 0.1, which is also the latest, in a repository of its own."""
    folder = tmp_path_factory.mktemp("published")
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SITE_DIR": str(folder / "built"),
        "SITE_URL": "https://docs.example/postroom/",
        "NO_MKDOCS_2_WARNING": "1",
        **{f"GIT_{who}_NAME": "Ada" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "ada@example.com" for who in ("AUTHOR", "COMMITTER")},
    }
    for line in (
        "git init --quiet",
        "git commit --quiet --allow-empty --message Begin",
        f"mike deploy --config-file {ROOT}/mkdocs.yml --branch site 0.1 latest",
        "git checkout --quiet site",
    ):
        ended = subprocess.run(
            line.split(),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture(scope="module")
def site(published: Path) -> Path:
    return published / "0.1"


@pytest.fixture(scope="module")
def address(published: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(published))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = need(Chromium)
    with sync_playwright() as playwright:
        connected = playwright.chromium.connect_over_cdp(chromium.url)
        yield connected
        connected.close()


def test_every_page_of_docs_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    """The build is strict, so a page that is not in the navigation has failed it; `llms.txt` lists the navigation."""
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS)
        assert f"(https://docs.example/postroom/latest/{name.as_posix()})" in listed, f"{name} is missing in mkdocs.yml"
        rendered = site / (name.parent if name.name == "README.md" else name.with_suffix("")) / "index.html"
        assert rendered.exists(), name


def test_llms_txt_says_what_each_page_is_for_and_has_the_text_of_all(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert listed.startswith("# Postroom\n\n> A transactional outbox")
    entries = re.findall(r"^- \[.+\]\((\S+)\)(: .+)?$", listed, re.MULTILINE)
    assert len(entries) > 100
    for target, _ in entries:
        assert (site / target.removeprefix("https://docs.example/postroom/latest/")).exists(), target
    assert sum(1 for _, summary in entries if summary) > 0.9 * len(entries)
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    for page in (DOCS / "guide").glob("*.md"):
        assert page.read_text(encoding="utf-8").strip() in full


def test_what_lies_outside_docs_is_on_the_site_too(site: Path) -> None:
    assert (site / "project" / "CHANGELOG" / "index.html").exists()
    shown = (site / "project" / "src" / "postroom" / "outbox.py" / "index.html").read_text(encoding="utf-8")
    assert "Records messages in the caller" in shown
    page = (site / "architecture" / "index.html").read_text(encoding="utf-8")
    assert 'href="../project/src/postroom/outbox.py/"' in page


def test_the_reference_has_every_public_name_and_each_has_a_docstring(site: Path) -> None:
    documented = inventory(site / "objects.inv")
    public = set(names_in_all()) | set(names_that_pages_import())
    assert len(public) > 200
    assert not sorted(public - documented), "add them to a page of docs/reference"
    bare = []
    for name in sorted(public):
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute, None)  # None: a module, which has its own names
        if (inspect.isclass(value) or inspect.isfunction(value)) and not inspect.getdoc(value):
            bare.append(name)
    assert not bare, "these have no docstring"


def inventory(path: Path) -> set[str]:
    """What the reference documents, as other projects' references would find it."""
    *_, packed = path.read_bytes().split(b"\n", 4)
    return {line.split(" ", 1)[0] for line in zlib.decompress(packed).decode().splitlines()}


def names_in_all() -> Iterator[str]:
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        if module in INTERNAL:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                yield from (f"{module}.{name}" for name in ast.literal_eval(node.value))


def names_that_pages_import() -> Iterator[str]:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "postroom":
                    yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_versions_search_themes_and_drawings_work_without_the_network(
    published: Path, address: str, browser: Browser
) -> None:
    assert [(one["version"], one["aliases"]) for one in json.loads((published / "versions.json").read_text())] == [
        ("0.1", ["latest"])
    ]
    asked: list[str] = []
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else asked.append(request.url)
    )
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for path in ("", "tutorial/", "when-to-use/", "reference/relay/"):
        page.goto(f"{address}latest/{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, f"{path} is wider than a phone"
        assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"
    page.goto(f"{address}latest/architecture/")
    assert page.locator("figure.diagram svg").count() == 1
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(f"{address}latest/guide/outbox/")
    expect(page.locator(".md-version__current")).to_contain_text("0.1")
    page.keyboard.press("/")
    page.get_by_role("textbox", name="Search").fill("dead letter")
    expect(page.locator(".md-search-result__item").first).to_be_visible()
    page.close()
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
    assert errors == []
