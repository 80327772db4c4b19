"""What several tests of the command line and of the doctor begin with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.clinic import Clinic
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None from the environment, nor from a file."""
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=KINDS)
def clinic(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Clinic]:
    """A healthy system on each database."""
    with Clinic(ready_database(request.param)) as opened:
        yield opened
