"""What is built is complete, and installing it is enough for the demo, and for every command on SQLite."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from scripts import sbom
from scripts.other_pythons import SUPPORTED, find_interpreter
from tests.services.certificates import environment_to_download

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
DATABASE = "sqlite:///shop.db"
USED = """
import sqlite3
from contextlib import closing
import postroom, postroom.testing, postroom.web

for package in (postroom, postroom.testing, postroom.web):
    for name in package.__all__:
        try:
            getattr(package, name)
        except ImportError as error:
            assert name in ("Access", "Dashboard") and "pip install 'postroom[dashboard]'" in str(error)
with closing(sqlite3.connect("shop.db")) as connection, connection:
    postroom.Outbox().add(connection, "orders.created", {"order_id": 7}, key=7)
"""

EVERYTHING = """
import importlib, pkgutil
import postroom

needed = set()
for module in pkgutil.walk_packages(postroom.__path__, "postroom.", onerror=lambda _: None):
    if module.name == "postroom.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        cause = error if error.name else error.__cause__
        needed.add(cause.name.partition(".")[0])
print(*sorted(needed))
"""
"""Import all modules, and print which packages they need that are not there."""
OPTIONAL = {
    *("alembic", "aio_pika", "aiormq", "pamqp", "confluent_kafka", "nats", "redis", "httpx", "fastavro", "google"),
    *("amqp", "celery", "dramatiq", "faststream", "taskiq"),
    *("prometheus_client", "opentelemetry", "starlette", "jinja2", "uvicorn", "markupsafe"),
    *(
        "flask",
        "django",
        "asgiref",
        "fastapi",
        "litestar",
        "quart",
        "pytest",
        "psycopg",
        "psycopg2",
        "asyncpg",
        "greenlet",
    ),
}
ROUND = """
import asyncio, sqlite3
from contextlib import closing
from postroom import Outbox, Relay, schema
from postroom.brokers.memory import MemoryBroker
from sqlalchemy import create_engine

schema.create(create_engine("sqlite:///shop.db"))
with closing(sqlite3.connect("shop.db")) as connection, connection:
    Outbox().add(connection, "orders.created", {"order_id": 7})
broker = MemoryBroker()
asyncio.run(Relay("sqlite:///shop.db", broker).run_until_empty())
[sent] = broker.messages
assert sent.json() == {"order_id": 7}
"""
UV = Path(sys.executable).parent / "uv"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("built")
    _run([UV, "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, ROOT])
    return folder


@pytest.fixture(scope="module")
def programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds Postroom and what it depends on, in the versions of the lock."""
    return _environment(built, tmp_path_factory.mktemp("clean"), Path(sys.executable))


def _environment(built: Path, folder: Path, interpreter: Path) -> Path:
    [wheel] = built.glob("postroom-*.whl")
    _run([UV, "venv", "--python", interpreter, folder / "venv"])
    programs = folder / "venv" / "bin"
    _run([UV, "pip", "install", "--python", programs / "python", "--constraint", ROOT / "requirements.lock", wheel])
    return programs


def test_wheel_and_source_distribution_hold_what_they_should_and_no_more(built: Path) -> None:
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name == f"postroom-{PROJECT['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(source) as files:
        in_source = {name.partition("/")[2] for name in files.getnames()}
    package = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "postroom").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"postroom/py.typed", "postroom/web/dashboard/static/vendor/htmx-LICENSE.txt"} <= package
    about = f"postroom-{PROJECT['version']}.dist-info"
    assert in_wheel - package == {
        *(f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"))
    }
    assert package <= in_wheel
    assert in_source == {
        *(f"src/{name}" for name in package),
        *("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"),
    }


@pytest.mark.parametrize("version", SUPPORTED)
def test_wheel_and_source_distribution_work_on_every_python(version: str, built: Path, tmp_path: Path) -> None:
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip(f"this machine has no Python {version}")
    programs = _environment(built, tmp_path, interpreter)
    [source] = built.glob("*.tar.gz")
    python = programs / "python"
    assert _run([programs / "postroom", "--version"], tmp_path) == f"postroom {PROJECT['version']}\n"
    missing = set(_run([python, "-W", "error", "-c", ROUND + EVERYTHING], tmp_path).split())
    assert missing <= OPTIONAL
    assert {"fastavro", "google", "confluent_kafka"} <= missing, "the environment is not clean"
    _run([UV, "pip", "install", "--python", python, "--no-deps", "--reinstall", source])
    (tmp_path / "shop.db").unlink()
    _run([python, "-W", "error", "-c", ROUND], tmp_path)


def test_the_version_and_the_extras_are_the_same_everywhere() -> None:
    deploy = ROOT / "deploy"
    chart = yaml.safe_load((deploy / "helm" / "postroom" / "Chart.yaml").read_text())
    [image] = yaml.safe_load((deploy / "kubernetes" / "kustomization.yaml").read_text())["images"]
    assert {chart["version"], chart["appVersion"], image["newTag"]} == {PROJECT["version"]}
    assert re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] in {  # type: ignore[index]  # it has a section
        PROJECT["version"],
        "Unreleased",
    }
    page = (ROOT / "docs" / "guide" / "installing.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])
    in_readme = {
        name
        for row in re.findall(r"^\| (`.*?) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert set(PROJECT["optional-dependencies"]) - in_readme <= {"asyncio", "alembic"}


def test_the_bill_of_materials_is_valid_and_lists_what_users_install() -> None:
    lock = sbom.packages((ROOT / "requirements.lock").read_text())
    bill = sbom.bill(PROJECT, lock)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None
    names = {one["name"] for one in bill["components"]}
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    direct = {re.match(r"[\w-]+", one)[0].lower() for one in wanted}  # type: ignore[index]  # each begins with a name
    assert direct - {"postroom"} <= names
    assert not names & {"pytest", "mypy", "fastapi", "flask", "hypothesis"}
    assert all(one["properties"] for one in bill["components"])


def test_a_fresh_install_needs_no_further_package_for_commands_on_sqlite(programs: Path, tmp_path: Path) -> None:
    postroom = programs / "postroom"
    _run([postroom, "init", "--database", DATABASE], tmp_path)
    _run([programs / "python", "-W", "error", "-c", USED], tmp_path)
    assert json.loads(_run([postroom, "status", "--database", DATABASE, "--json"], tmp_path))["pending"] == 1
    sent = _run([postroom, "relay", "--broker", "stdout:", "--until-empty", "--database", DATABASE], tmp_path)
    assert json.loads(sent)["topic"] == "orders.created"
    for command in (["messages", "list"], ["dead", "list"], ["cleanup"]):
        _run([postroom, *command, "--database", DATABASE], tmp_path)
    _run([postroom, "bench", "--messages", "100", "--rounds", "1"], tmp_path)


def test_a_fresh_install_has_the_dashboards_files_and_says_what_it_needs(programs: Path, tmp_path: Path) -> None:
    found = next((programs.parent / "lib").glob("python*")) / "site-packages" / "postroom" / "web" / "dashboard"
    there = Path(ROOT, "src", "postroom", "web", "dashboard")
    for folder in ("html", "static", "static/vendor"):
        assert sorted(path.name for path in (found / folder).iterdir()) == sorted(
            path.name for path in (there / folder).iterdir()
        )
    ended = subprocess.run(
        [programs / "postroom", "dashboard", "--database", DATABASE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, "pip install 'postroom[dashboard]'" in ended.stderr) == (1, True)


def test_a_fresh_install_can_show_the_demo(programs: Path, tmp_path: Path) -> None:
    shown = json.loads(_run([programs / "postroom", "demo", "--messages", "20", "--json"], tmp_path))
    assert (shown["committed"], shown["effects"], shown["lost"]) == (20, 20, 0)


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str:
    environment = {
        name: value
        for name, value in environment_to_download().items()
        if not name.startswith(("COVERAGE_", "POSTROOM_", "PYTHONPATH", "VIRTUAL_ENV"))
    }
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, f"{' '.join(map(str, command))}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout
