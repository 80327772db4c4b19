"""The guide's examples run; what the pages list is what the code has; their links lead somewhere."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest
import typer.main
from prometheus_client import CollectorRegistry, generate_latest

from postroom import errors
from postroom.cli.app import app
from postroom.doctor import CHECKS
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import OutcomeCode, State, Transition
from postroom.rules.saga_state import STEP_MISSING
from postroom.saga.running.destination import NOT_A_SAGA
from postroom.saga.running.events_received import UNKNOWN_SAGA
from postroom.saga.running.step_failures import ABANDONED, DEADLINE, NO_EVENT
from postroom.saga.running.stored_journal import WRONG_DATABASE
from postroom.store.admin.message_list import COLUMNS
from postroom.store.connections.urls import resolve
from postroom.store.saga.aborting import ABORTED
from postroom.store.sql.names import TABLES
from postroom.telemetry.metrics import prometheus
from tests.acceptance import documents

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

DOCS = documents.ROOT / "docs"
GUIDE = [*sorted((DOCS / "guide").glob("*.md")), DOCS / "recipes.md", DOCS / "README.md"]
PAGES = [
    *(documents.ROOT / "README.md", documents.ROOT / "CONTRIBUTING.md"),
    *sorted(DOCS.rglob("*.md")),
    *sorted((documents.ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(documents.ROOT)) for page in pages]


@pytest.mark.parametrize("page", GUIDE, ids=names(GUIDE))
def test_the_examples_of_the_guide_run(page: Path, tmp_path: Path, fresh_database: FreshDatabase) -> None:
    wanted = documents.databases_of(page).items()
    databases = {name: resolve(fresh_database(kind)).render_as_string(hide_password=False) for name, kind in wanted}
    documents.run(page, tmp_path, databases)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    for path, heading in LINK.findall(page.read_text(encoding="utf-8")):
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if heading:
            assert heading in headings(target), f"{page.name} links to {path}{heading}"


def test_the_architecture_names_code_that_exists() -> None:
    """Each `path.py` is a file, and each name that stands with one (`path.py`: `name`) is in it."""
    package = documents.ROOT / "src" / "postroom"
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`(?:\]\([^)]*\))?(?:: `([\w.]+)`)?", text)
    assert len(named) > 40
    for path, name in named:
        assert (package / path).is_file(), path
        if name:
            source = (package / path).read_text(encoding="utf-8")
            missing = [part for part in name.split(".") if not re.search(rf"\b(?:class|def) {part}\b", source)]
            assert not missing, f"{path} has no {name}"


def test_every_page_is_reachable_from_the_first() -> None:
    reached: set[Path] = set()
    ahead = [DOCS / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page not in reached:
            reached.add(page)
            links = LINK.findall(page.read_text(encoding="utf-8"))
            ahead += [page.parent / path for path, _ in links if path.endswith(".md")]
    assert {page.resolve() for page in DOCS.rglob("*.md")} <= reached


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_the_site_reads_lists_and_tables_as_the_repository_does(page: Path) -> None:
    """Code hosts take a list right below a paragraph, and a block indented by two spaces; Python-Markdown does not."""
    before, fenced = "", False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("```"):
            where = f"{page.name}:{number}: {line[:40]!r}"
            starts = re.match(r"(?:[-*]|\d+\.) ", line) or line.startswith("|")
            belongs = re.match(r"\s*(?:[-*]|\d+\.) |\||\s", before)
            assert not (starts and before.strip() and not belongs), f"{where} needs a free line before it"
            assert before.strip() or not re.match(r" {1,3}\S", line), f"{where} must be indented by four spaces"
        before = line


def headings(page: Path) -> set[str]:
    """The page's headings as the anchors that they become."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_L_1_every_transition_is_drawn_from_where_and_to_where_it_leads() -> None:
    page = (DOCS / "states.md").read_text(encoding="utf-8")
    drawn = {
        (source, target, name)
        for source, target, labels in re.findall(r"^    (\S+) --> (\S+): (.*)$", page, re.MULTILINE)
        for name in labels.split(", ")
    }
    there = {
        (source or "[*]", transition.target or "[*]", transition.name)
        for transition in Transition
        for source in transition.sources
    }
    assert drawn == there
    for transition in Transition:
        assert f"| `{transition.name}` | {transition.meaning} |" in page


def test_L_13_every_code_and_state_is_listed() -> None:
    page = (DOCS / "states.md").read_text(encoding="utf-8")
    for name in (*OutcomeCode, *State, *Reason):
        assert f"`{name.value}`" in page
    for policy in ("worker", "lease", "consistency", "tray", "dispatch", "table", "exponential"):
        assert callable(getattr(RetryPolicy, policy))
        assert f"`RetryPolicy.{policy}(" in page
    page = (DOCS / "guide" / "saga-operations.md").read_text(encoding="utf-8")
    for code in (ABANDONED, ABORTED, DEADLINE, NO_EVENT, NOT_A_SAGA, STEP_MISSING, UNKNOWN_SAGA, WRONG_DATABASE):
        assert f"| `{code}` |" in page


def test_every_error_is_explained_and_drawn_where_it_belongs() -> None:
    page = (DOCS / "guide" / "errors.md").read_text(encoding="utf-8")
    branch = re.compile(r"^ *([│├└ ]*── \w+)", re.MULTILINE)
    assert branch.findall(page) == branch.findall(errors.__doc__ or "")
    for _, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, errors.PostroomError) and error not in (errors.PostroomError, errors.UnusableConnection):
            assert f"| `{error.__name__}` |" in page


def test_V_1_every_metric_is_listed_with_its_labels() -> None:
    page = (DOCS / "guide" / "metrics.md").read_text(encoding="utf-8")
    registry = CollectorRegistry()
    prometheus(registry)
    shown = generate_latest(registry).decode()
    there = set(re.findall(r"^# TYPE (\S+) \w+$", shown, re.MULTILINE))
    listed = set(re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) \|", page, re.MULTILINE))
    assert listed == {name for name in there if not name.endswith("_created")}


def test_every_table_and_every_column_of_the_view_is_listed() -> None:
    page = (DOCS / "guide" / "schema.md").read_text(encoding="utf-8")
    for name in (*TABLES.values(), *COLUMNS):
        assert f"`{name}`" in page


def test_every_command_and_option_is_listed() -> None:
    page = (DOCS / "guide" / "commands.md").read_text(encoding="utf-8")
    group = typer.main.get_group(app())
    for name, command in group.commands.items():
        commands = getattr(command, "commands", {"": command})
        for part, leaf in commands.items():
            assert f"`{f'{name} {part}'.strip()}`" in page
            for option in (option for parameter in leaf.params for option in parameter.opts):
                assert option in page, f"{name} {option}"


def test_V_7_every_check_of_the_doctor_is_listed_and_leads_to_a_symptom_that_names_it() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)` \|", (DOCS / "guide" / "doctor.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [code for code in listed if "_" in code] == [check.code for check in CHECKS]
    symptoms = (DOCS / "guide" / "troubleshooting.md").read_text(encoding="utf-8").split("\n## ")[1:]
    named: dict[str, str] = {}
    for section in symptoms:
        title, _, rest = section.partition("\n")
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        codes = re.findall(r"`([A-Z_]+)`", rest.partition("**Checks:**")[2].partition("\n\n")[0])
        assert codes, f"{title} has no check"
        named |= dict.fromkeys(codes, f"docs/guide/troubleshooting.md#{anchor}")
    assert named == {check.code: check.docs for check in CHECKS}
    production = (DOCS / "guide" / "production.md").read_text(encoding="utf-8")
    known = {check.code for check in CHECKS}
    assert {word for word in re.findall(r"`([A-Z]+_[A-Z_]+)`", production) if not word.startswith("POSTROOM")} <= known
