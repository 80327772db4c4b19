"""Fixtures of the source contract suite: see `desks`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.contract.sources.desks import DESKS, SERVERS, Desk, ServerDesk
from tests.contract.sources.receiving import Counter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module", params=DESKS, ids=lambda desk: desk.name)
def desk(request: pytest.FixtureRequest) -> Desk:
    kind: type[Desk] = request.param
    return kind()


@pytest.fixture(scope="module", params=SERVERS, ids=lambda desk: desk.name)
def server_desk(request: pytest.FixtureRequest) -> ServerDesk:
    kind: type[ServerDesk] = request.param
    return kind()


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex}"


@pytest.fixture
async def counter(desk: Desk, topic: str) -> AsyncIterator[Counter]:
    async with AsyncExitStack() as closing:
        await desk.declare(topic)
        yield Counter(desk, topic, closing)


@pytest.fixture
async def server_counter(server_desk: ServerDesk, topic: str) -> AsyncIterator[Counter]:
    async with AsyncExitStack() as closing:
        await server_desk.declare(topic)
        yield Counter(server_desk, topic, closing)
