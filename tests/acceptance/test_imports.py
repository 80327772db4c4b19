"""A program pays only for what it uses: what is loaded when. What it costs is measured in `benchmarks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

DRIVERS = {"aiomysql", "aiosqlite", "asyncmy", "asyncpg", "psycopg", "psycopg2", "pymysql", "sqlite3"}
LOADED = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def loaded_by(program: str, directory: Path) -> set[str]:
    """The top-level modules that are loaded when the program is through."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "POSTROOM_"))}
    ended = subprocess.run(
        [sys.executable, "-c", program + LOADED],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["status", "--help"],
        ["messages", "list", "--help"],
        ["dead", "requeue", "--help"],
        ["cleanup", "--help"],
        ["demo", "--help"],
    ],
)
def test_help_loads_neither_sqlalchemy_nor_a_driver(arguments: list[str], tmp_path: Path) -> None:
    loaded = loaded_by(f"from postroom.cli import main\nassert main({arguments!r}) == 0", tmp_path)
    assert "typer" in loaded
    assert not loaded & {"sqlalchemy", "rich", *DRIVERS}


def test_an_add_over_sqlite3_loads_neither_sqlalchemy_nor_another_driver(
    fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    url = fresh_database("sqlite")
    subprocess.run([sys.executable, "-m", "postroom", "init", "--database", url], check=True, capture_output=True)
    file = url.removeprefix("sqlite:///")
    program = f"""
import sqlite3
from contextlib import closing
from postroom import Inbox, Outbox
with closing(sqlite3.connect({file!r})) as connection, connection:
    message = Outbox().add(connection, "orders.created", {{"order_id": 7}}, key=7)
    assert Inbox("billing").first_time(connection, message.id)
"""
    loaded = loaded_by(program, tmp_path)
    assert "sqlite3" in loaded
    assert not loaded & {"sqlalchemy", "typer", "rich", *DRIVERS - {"sqlite3"}}


UNWANTED = {"sqlalchemy", "greenlet", "typer", "click", "pydantic", "rich", "structlog"}
UNWANTED |= {f"postroom.{name}" for name in ("admin", "bench", "cli.app", "saga", "twophase", "store.saga")}
UNWANTED |= {f"postroom.{name}" for name in ("relay.backlog", "relay.cleaning", "rules.saga_plan", "store.schema.ddl")}


@pytest.mark.parametrize(("kind", "driver"), [("postgresql", "asyncpg"), ("mariadb", "asyncmy"), ("sqlite", "sqlite3")])
def test_a_relay_loads_one_driver_and_neither_sqlalchemy_nor_typer_nor_what_it_was_not_asked_for(
    kind: str, driver: str, ready_database: FreshDatabase, tmp_path: Path
) -> None:
    arguments = ["relay", "--once", "--broker", "stdout:", "--database", ready_database(kind), "--log-format", "json"]
    program = f"""
import sys
from postroom.cli import main
assert main({arguments!r}) == 0
assert not set(sys.modules) & {UNWANTED!r}, set(sys.modules) & {UNWANTED!r}
"""
    loaded = loaded_by(program, tmp_path)
    assert loaded & DRIVERS == {driver, "sqlite3"}  # whose error codes are known by name


def test_status_loads_no_sqlalchemy(ready_database: FreshDatabase, tmp_path: Path) -> None:
    arguments = ["status", "--database", ready_database("postgresql")]
    loaded = loaded_by(f"from postroom.cli import main\nassert main({arguments!r}) == 0", tmp_path)
    assert "psycopg" in loaded
    assert "sqlalchemy" not in loaded


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
from postroom.store.connections import urls
urls.find_spec = lambda name: None if name in {names!r} else importlib.util.find_spec(name)
from postroom.cli import main
"""


def test_without_any_extra_sqlite_works_and_other_databases_name_what_to_install(tmp_path: Path) -> None:
    extras = {*DRIVERS - {"sqlite3"}, "greenlet"}
    program = WITHOUT_EXTRAS.format(names=extras)
    sqlite = "--database", "sqlite:///app.db"
    program += "".join(f"assert main({[*command, *sqlite]!r}) == 0\n" for command in (["init"], ["status"]))
    for url in ("postgresql://host/name", "mysql://host/name"):
        program += f"assert main(['status', '--database', {url!r}]) == 1\n"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    postgresql, mysql = ended.stderr.splitlines()
    assert postgresql.startswith("postroom: postgresql needs a driver")
    assert "pip install 'postroom[postgresql]'" in postgresql
    assert "pip install 'postroom[mysql]'" in mysql


def test_importing_postroom_loads_nothing_but_itself(tmp_path: Path) -> None:
    assert not loaded_by("import postroom", tmp_path) & {"sqlalchemy", "msgspec", "uuid_utils", "typer", *DRIVERS}
