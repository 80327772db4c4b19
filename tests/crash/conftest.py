"""What the tests with processes share."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.crash.places import Places
from tests.crash.processes import Processes
from tests.crash.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(tmp_path)) as processes:
        yield processes


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def shop(kind: str, ready_database: FreshDatabase) -> Iterator[Shop]:
    """A service on a database of this kind, with its tables."""
    with closing(Shop(ready_database(kind))) as shop:
        yield shop
