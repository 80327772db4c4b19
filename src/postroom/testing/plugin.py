"""The pytest plugin: fixtures for testing code that publishes. It imports nothing until one is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from postroom.testing import InMemoryRelay, RecordingOutbox


@pytest.fixture
def postroom_outbox() -> RecordingOutbox:
    """An outbox that records what is published, and needs no database."""
    from postroom.testing import RecordingOutbox

    return RecordingOutbox()


@pytest.fixture
def postroom_relay(postroom_outbox: RecordingOutbox) -> InMemoryRelay:
    """A relay that delivers what `postroom_outbox` has recorded when `deliver` is called."""
    from postroom.testing import InMemoryRelay

    return InMemoryRelay(postroom_outbox)


@pytest.fixture
def postroom_database(tmp_path: Path) -> str:
    """The URL of an SQLite database for this test, with Postroom's tables in it."""
    from postroom import schema

    url = f"sqlite:///{tmp_path / 'postroom.db'}"
    schema.create(url)
    return url
