"""The tutorial does what it says: every file, every command, and every line that it prints, with a real broker."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from tests.acceptance import documents
from tests.acceptance.typed_page import Typist
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

TUTORIAL = documents.ROOT / "docs" / "tutorial.md"


def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    need(Nats)  # its program is what the tutorial starts
    with closing(Typist(tmp_path, {"4222": free_port(), "8000": free_port()})) as typist:
        assert typist.type(TUTORIAL, not_typed=("pip install ",)) > 20
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        statuses = connection.execute("SELECT status FROM postroom_outbox_status").fetchall()
    assert statuses == [("sent",)] * 3
