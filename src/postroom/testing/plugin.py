"""The pytest plugin: fixtures for tests of code that publishes. It loads nothing until one of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from postroom.testing import InMemoryRelay, RecordingOutbox


@pytest.fixture
def postroom_outbox() -> RecordingOutbox:
    """An outbox that remembers what was published, and needs no database."""
    from postroom.testing import RecordingOutbox

    return RecordingOutbox()


@pytest.fixture
def postroom_relay(postroom_outbox: RecordingOutbox) -> InMemoryRelay:
    """A relay that delivers what `postroom_outbox` remembers, when `deliver` is called."""
    from postroom.testing import InMemoryRelay

    return InMemoryRelay(postroom_outbox)


@pytest.fixture
def postroom_database(tmp_path: Path) -> str:
    """The URL of an SQLite database of the test's own, with Postroom's tables in it."""
    from postroom import schema

    url = f"sqlite:///{tmp_path / 'postroom.db'}"
    schema.create(url)
    return url
