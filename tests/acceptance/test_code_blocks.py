"""Every code block of every page is run, or checked by what reads its language, or is text that nobody types.

Which pages are run, and by which test, is in `RUN`. What is left of the others must parse: commands with the command
line's own parser, so that a renamed option is found; SQL by PostgreSQL; YAML, TOML and JSON by what would load it.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import psycopg
import pytest
import typer.main
import yaml

from postroom.cli.app import app
from postroom.settings import Settings
from tests.acceptance import documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

ROOT = documents.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))
RUN = {
    "README.md": "test_readme",
    "docs/tutorial.md": "test_tutorial",
    "docs/README.md": "test_docs",
    "docs/recipes.md": "test_docs",
    **{f"docs/guide/{page.name}": "test_docs" for page in (ROOT / "docs" / "guide").glob("*.md")},
}
"""The pages whose Python is run, and the test that does it."""
SHOWN = {"CONTRIBUTING.md": "tests of this repository, shown with their fixtures left out: they must compile"}
SQL_RUN = {
    "docs/guide/plain-sql.md": "tests/contract/test_plain_sql_producer.py",
    "docs/guide/debezium.md": "tests/contract/test_debezium.py, and what it shows for owners is what `setup` prints",
}
NOT_POSTGRESQL = ("XA ", "COMMIT PREPARED", "ROLLBACK PREPARED")
"""Statements that no parser here takes: MariaDB's, and those that PL/pgSQL reads as its own COMMIT."""
TYPED = re.compile(r"(\w+=\S+ +)*(\S+/)?(postroom|pip|make|opentelemetry-instrument)\b")
FENCE = re.compile(r"^ *```(.*)$")
EXTRAS = re.compile(r"postroom\[([\w,]+)\]|\.\[([\w,]+)\]")
PLACEHOLDER = re.compile(r"(?<!:):[a-z_]+")
GROUP = typer.main.get_group(app())
CHART = ROOT / "deploy" / "helm" / "postroom" / "values.schema.json"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in PAGES:
        begun: tuple[int, str] | None = None
        body: list[str] = []
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fence = FENCE.match(line)
            if fence and begun:
                yield Block(str(page.relative_to(ROOT)), *begun, "\n".join(body))
                begun, body = None, []
            elif fence:
                begun = (number, fence[1])
            elif begun:
                body.append(line)
        assert begun is None, f"{page}:{begun} is not closed"


ALL = list(blocks())


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


def test_every_block_says_its_language() -> None:
    known = {"python", "console", "text", "sql", "yaml", "toml", "json", "mermaid"}
    assert not [str(block) for block in ALL if block.language not in known]
    assert len(ALL) > 200


def test_python_is_run_or_compiles() -> None:
    for block in of("python"):
        assert block.page in RUN or block.page in SHOWN, f"{block}: nobody runs it"
        compile(block.text, str(block), "exec")


def commands(block: Block) -> Iterator[str]:
    """The lines that somebody types."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    else:
        yield from (
            line for line in lines if re.match(r"(\w+=\S+ +)*(\S+/)?(postroom|pip|make|opentelemetry-in)\b", line)
        )


def test_commands_exist_with_the_options_that_the_pages_give_them() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    seen = 0
    for block in of("console", "text"):
        for line in commands(block):
            words = [word for word in shlex.split(line, comments=True) if word != "&"]
            while re.match(r"\w+=", words[0]):
                words = words[1:]
            for first, second in EXTRAS.findall(line):
                assert {*(first or second).split(",")} <= {*project["optional-dependencies"]}, f"{block}: {line}"
            if words[0] == "make":
                assert words[1] in targets, f"{block}: {line}"
            elif "postroom" in {Path(word).name for word in words} and words[0] != "pip":
                at = [Path(word).name for word in words].index("postroom")
                parse(words[at + 1 :], f"{block}: {line}")
                seen += 1
    assert seen > 100


def parse(words: list[str], what: str) -> None:
    """Fails unless the command line takes these words. What comes after `>` or `|` is the shell's."""
    words = [word.replace("$", "").replace("…", "x") for word in words]
    for sign in (">", "|", "2>/dev/null"):
        words = words[: words.index(sign)] if sign in words else words
    command: Any = GROUP
    name = "postroom"
    if words == ["--version"]:
        return
    while hasattr(command, "commands") and words:
        name = words[0]
        assert name in command.commands, f"{what}: no command {name!r}"
        command, words = command.commands[name], words[1:]
    try:
        command.make_context(name, words, resilient_parsing=False).close()
    except Exception as error:  # noqa: BLE001 - whatever it says, the page is wrong
        pytest.fail(f"{what}: {type(error).__name__} {error}")


def test_data_is_what_its_reader_takes() -> None:
    for block in of("json"):
        json.loads(block.text)
    for block in of("toml"):
        assert {*tomllib.loads(block.text)} <= {*Settings.__struct_fields__}, str(block)
    chart = json.loads(CHART.read_text(encoding="utf-8"))
    defaults = yaml.safe_load(CHART.with_name("values.yaml").read_text(encoding="utf-8"))
    for block in of("yaml"):
        loaded = yaml.safe_load(block.text)
        if "secrets" in loaded:
            jsonschema.validate(defaults | loaded, chart)
        for container in loaded.get("containers", loaded.get("spec", {}).get("containers", [])):
            words = container.get("command", container.get("args"))
            parse(words[1:], str(block))


def test_sql_is_what_postgresql_parses(ready_database: FreshDatabase) -> None:
    """The statements of pages that no other test runs, compiled and not run, in a database with Postroom's tables."""
    with psycopg.connect(ready_database("postgresql").replace("postgresql+psycopg:", "postgresql:")) as connection:
        for block in of("sql"):
            text = re.sub(r"--.*", "", block.text)
            for statement in filter(None, map(str.strip, text.split(";"))):
                if block.page in SQL_RUN or statement.startswith(NOT_POSTGRESQL):
                    continue
                body = PLACEHOLDER.sub("NULL", statement)
                taken = re.sub(r"^SELECT", "PERFORM", body)
                try:
                    connection.execute(f"DO $check$ BEGIN IF false THEN {taken}; END IF; END $check$")
                except psycopg.Error as error:
                    pytest.fail(f"{block}: {statement}\n{error}")
