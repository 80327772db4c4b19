"""The README's example does what the README says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from tests.acceptance import documents

if TYPE_CHECKING:
    from pathlib import Path

README = documents.ROOT / "README.md"


def test_O_1_the_readme_s_example_leaves_an_order_and_its_message(tmp_path: Path) -> None:
    documents.run(README, tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("SELECT id, goods FROM orders").fetchall() == [(1, "a kettle")]
        messages = connection.execute("SELECT topic, key, status FROM postroom_outbox_status").fetchall()
        assert messages == [("orders.created", "1", "sent")]
        assert connection.execute("SELECT payload FROM postroom_outbox").fetchone() == (b'{"order_id":1}',)


def test_the_readme_s_example_has_no_more_than_ten_lines() -> None:
    example, _, _test = documents.program_of(README).partition("\nfrom postroom import Consumer")
    code = [line for line in example.splitlines() if line and "_s.run" not in line]
    assert 0 < len(code) <= 10
