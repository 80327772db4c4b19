"""The examples do what they say, and are made of what users may use."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from examples.choreography.books import Books
from examples.choreography.run import Shop, some_orders
from tests.acceptance.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

SECONDS = 120
"""A bound for a machine that does much else; it takes about ten."""
EXAMPLES = ROOT / "examples"
PUBLIC = {
    "postroom",
    *(f"postroom.{name}" for name in ("brokers.memory", "errors", "events", "idempotency", "incoming", "saga", "web")),
    *("postroom.django", "postroom.django.testing", "postroom.testing"),
}


def run(example: str, *arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", f"examples.{example}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    return ended.stdout


def ends_of(printed: str) -> Counter[str]:
    """How many orders came to which end, by the lines of the table."""
    ends = r"^\d{3} .* (completed|cancelled: cannot pay|cancelled: no|cancelled: withdrawn)\b"
    return Counter(re.findall(ends, printed, re.MULTILINE))


@pytest.mark.parametrize("arguments", [(), ("--memory",)], ids=["nats", "memory"])
def test_S_3_orders_are_completed_or_undone_while_a_service_is_killed(arguments: tuple[str, ...]) -> None:
    printed = run("choreography", *arguments)
    ends = ends_of(printed)
    assert ends.total() == 30
    assert set(ends) == {"completed", "cancelled: cannot pay", "cancelled: no"}
    assert "no money and no goods were made or lost" in printed
    assert ("SIGKILL" in printed) is (not arguments)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_E_2_a_saga_completes_or_undoes_every_order_while_a_worker_is_killed(
    kind: str, fresh_database: FreshDatabase
) -> None:
    printed = run("saga", *([] if kind == "sqlite" else ["--database", fresh_database(kind)]))
    ends = ends_of(printed)
    assert ends.total() == 30
    assert set(ends) == {"completed", "cancelled: cannot pay", "cancelled: no", "cancelled: withdrawn"}
    assert "no money and no goods were made or lost" in printed
    assert "a worker is killed (SIGKILL)" in printed
    story = printed.partition("How order")[2]
    order = ["accept_order", "charge", "reserve_stock", "complete_order", "reserve_stock", "charge", "accept_order"]
    assert re.findall(r"^[✓✗↩] +(\w+)", story, re.MULTILINE) == order


def test_E_2_an_order_that_comes_to_no_end_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    shop.place(some_orders(1))
    assert not shop.is_settled()
    assert shop.close_the_books() == 1
    assert "WRONG: 001 has not ended" in capsys.readouterr().out


RIGHT = Books(
    orders=[("1", "Ada", 30, "1 kettle", "completed", ""), ("2", "Ben", 20, "1 lamp", "cancelled", "no lamp")],
    payments=[("1", 30, "charged"), ("2", 20, "refunded")],
    accounts=[("Ada", 70), ("Ben", 50)],
    stock=[("kettle", 4), ("lamp", 0)],
    reserved=[("1", "kettle", 1)],
)
BEFORE = Books([], [], accounts=[("Ada", 100), ("Ben", 50)], stock=[("kettle", 5), ("lamp", 0)], reserved=[])


def test_E_2_the_audit_of_the_choreography_sees_what_is_wrong() -> None:
    assert RIGHT.violations(BEFORE) == []
    twice = replace(RIGHT, payments=[*RIGHT.payments, ("1", 30, "charged")])
    unpaid = replace(RIGHT, payments=RIGHT.payments[1:], accounts=[("Ada", 100), ("Ben", 50)])
    kept = replace(RIGHT, payments=[("1", 30, "charged"), ("2", 20, "charged")], accounts=[("Ada", 70), ("Ben", 30)])
    held = replace(RIGHT, stock=[("kettle", 3), ("lamp", 0)], reserved=[*RIGHT.reserved, ("2", "kettle", 1)])
    lost = replace(RIGHT, stock=[("kettle", 3), ("lamp", 0)])
    assert [len(books.violations(BEFORE)) for books in (twice, unpaid, kept, held, lost)] == [2, 1, 1, 1, 1]


def test_examples_use_the_public_surface_only() -> None:
    for file in EXAMPLES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            modules |= {one.name for one in node.names} if isinstance(node, ast.Import) else set()
            used = {one for one in modules if one.split(".")[0] == "postroom"}
            assert used <= PUBLIC, file


def test_the_examples_are_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for directory in EXAMPLES.iterdir():
        if (directory / "__main__.py").exists():
            assert f"({directory.name}/README.md)" in listed
            assert (directory / "README.md").exists()
