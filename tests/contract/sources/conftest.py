"""Fixtures of the source contract suite: see `source_rigs`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.contract.sources.receiving import Counter
from tests.contract.sources.source_rigs import SERVERS, SOURCE_RIGS, ServerSourceRig, SourceRig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module", params=SOURCE_RIGS, ids=lambda source_rig: source_rig.name)
def source_rig(request: pytest.FixtureRequest) -> SourceRig:
    kind: type[SourceRig] = request.param
    return kind()


@pytest.fixture(scope="module", params=SERVERS, ids=lambda source_rig: source_rig.name)
def server_rig(request: pytest.FixtureRequest) -> ServerSourceRig:
    kind: type[ServerSourceRig] = request.param
    return kind()


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex}"


@pytest.fixture
async def counter(source_rig: SourceRig, topic: str) -> AsyncIterator[Counter]:
    async with AsyncExitStack() as closing:
        await source_rig.declare(topic)
        yield Counter(source_rig, topic, closing)


@pytest.fixture
async def server_counter(server_rig: ServerSourceRig, topic: str) -> AsyncIterator[Counter]:
    async with AsyncExitStack() as closing:
        await server_rig.declare(topic)
        yield Counter(server_rig, topic, closing)
