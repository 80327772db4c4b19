"""Fixtures of the broker contract suite: see `rigs`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.acceptance.service import Service
from tests.contract.brokers.rigs import RIGS, Rig
from tests.services.databases import need

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from postroom.brokers.port import Broker
    from tests.conftest import FreshDatabase


@pytest.fixture(scope="module", params=RIGS, ids=lambda rig: rig.name)
def rig(request: pytest.FixtureRequest) -> Rig:
    kind: type[Rig] = request.param
    return kind(need(kind.kind))


@pytest.fixture
def topic() -> str:
    return f"t{uuid4().hex}"


@pytest.fixture
async def broker(rig: Rig) -> AsyncIterator[Broker]:
    broker = rig.broker(rig.url())
    yield broker
    await broker.close()


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database("postgresql"))) as service:
        yield service
