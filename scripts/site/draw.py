"""Draw the diagrams of the pages that have no drawing yet: `make diagrams`. Needs npm, a network and Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from scripts.site.diagrams import DIAGRAM, DRAWINGS, drawing_of
from scripts.site.repository import DOCS, ROOT

MERMAID = "@mermaid-js/tiny@12.0.0"
# Colours are variables of the site's style sheet, so that a drawing follows the theme.
STYLE = """
.node rect, .node circle, .node ellipse, .node polygon, .node path, .stateGroup rect, .basic {
  fill: var(--diagram-node) !important; stroke: var(--diagram-line) !important }
.cluster rect { fill: var(--diagram-group) !important; stroke: var(--diagram-line) !important }
.flowchart-link, .transition, .relation, .edgePath path, .edge-thickness-normal {
  stroke: var(--diagram-line) !important }
marker path, .marker, .arrowMarkerPath { fill: var(--diagram-line) !important; stroke: var(--diagram-line) !important }
text, tspan, .label, .nodeLabel, .edgeLabel { fill: var(--diagram-text) !important; color: var(--diagram-text) }
.edgeLabel rect, .edgeLabel .label rect, .labelBkg, rect.background {
  fill: var(--diagram-back) !important; opacity: 1 !important }
.node .state-start, circle.state-start, .start-state { fill: var(--diagram-line) !important }
"""
DRAW = """async ([name, diagram, style]) => {
    mermaid.initialize({startOnLoad: false, theme: "base", htmlLabels: false,
        flowchart: {htmlLabels: false, wrappingWidth: 400, nodeSpacing: 24, rankSpacing: 36, padding: 10},
        state: {nodeSpacing: 24, rankSpacing: 36},
        fontFamily: "Arial, 'Liberation Sans', Helvetica, sans-serif", themeCSS: style, deterministicIds: true});
    return (await mermaid.render(name, diagram)).svg;
}"""


def main() -> None:
    """Draw what is missing, and remove what no page has any more."""
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    wanted = {drawing_of(text): text for page in pages for text in DIAGRAM.findall(page.read_text(encoding="utf-8"))}
    DRAWINGS.mkdir(exist_ok=True)
    for path in set(DRAWINGS.glob("*.svg")) - wanted.keys():
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}")
    missing = {path: text for path, text in wanted.items() if not path.exists()}
    if not missing:
        print("every diagram is drawn")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=_mermaid(Path(folder)))
        for path, diagram in missing.items():
            svg = page.evaluate(DRAW, [f"diagram-{path.stem}", diagram, STYLE])
            path.write_text(re.sub(r"\n\s*", " ", svg) + "\n", encoding="utf-8")
            print(f"drew {path.relative_to(ROOT)}")
        browser.close()


def _mermaid(folder: Path) -> Path:
    """Mermaid as one script, from npm."""
    subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S607 - whichever npm is on PATH
    [archive] = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package" / "dist" / "mermaid.tiny.js"


if __name__ == "__main__":
    main()
