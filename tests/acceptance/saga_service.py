"""A service with sagas, for tests through the public surface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from postroom import Admin, Relay, Saga
from tests.acceptance.service import Service
from tests.acceptance.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postroom.admin import SagaDetails
    from postroom.saga import SagaContext

NUMBER = {
    "sqlite": "number INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "number SERIAL PRIMARY KEY",
    "mysql": "number INTEGER AUTO_INCREMENT PRIMARY KEY",
}
States = frozenset[str]
ENDED: States = frozenset({"completed", "compensated", "parked"})


class SagaService(Service):
    """A service's database with a table of effects, what relays do in it, and what an operator sees."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.operator = Admin(url)
        self.execute(f"CREATE TABLE effect ({NUMBER[self.engine.dialect.name]}, saga VARCHAR(200), what VARCHAR(200))")

    def start(self, saga: Saga[Any], *data: Any, **options: Any) -> list[str]:
        """Start an instance for each."""
        with self.engine.begin() as connection:
            return [saga.start(connection, one, **options) for one in data]

    def signal(self, saga: Saga[Any], id: str, event: str, payload: object = None, **options: Any) -> None:
        with self.engine.begin() as connection:
            saga.signal(connection, id, event, payload, **options)

    async def abort(self, saga: Saga[Any], id: str, **options: Any) -> None:
        """Abort in a thread: a relay in this event loop may have locked what the abort waits for."""

        def abort() -> None:
            with self.engine.begin() as connection:
                saga.abort(connection, id, **options)

        await asyncio.to_thread(abort)

    def effects(self, id: str) -> list[str]:
        """What was committed for an instance, in order."""
        with self.engine.begin() as connection:
            found = connection.execute(text("SELECT what FROM effect WHERE saga = :id ORDER BY number"), {"id": id})
            return [str(what) for (what,) in found]

    def seen(self, saga: Saga[Any], id: str) -> SagaDetails:
        return self.operator.saga(saga.name, id, data=True)

    async def settled(
        self, *sagas: Saga[Any], ids: Iterable[str], into: frozenset[str] = ENDED, **options: Any
    ) -> None:
        """Run the sagas until these instances of the first have ended, or are parked."""
        async with self.relay(*sagas, **options):
            await self.reached(sagas[0], ids, into)

    def relay(self, *sagas: Saga[Any], **options: Any) -> Relay:
        return Relay(self.url, sagas=list(sagas), **{"poll_interval_sec": 0.05, "lock_lease_sec": 5, **options})

    async def reached(self, saga: Saga[Any], ids: Iterable[str], states: States = ENDED) -> None:
        wanted = list(ids)
        await self.holds(lambda: all(self.seen(saga, one).state in states for one in wanted))

    async def holds(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - what happens elsewhere sets no event
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self.operator.close()
        super().close()


def effect(saga: SagaContext[Any], what: str) -> None:
    """Write an effect in a step's transaction."""
    saga.connection.execute(
        text("INSERT INTO effect (saga, what) VALUES (:saga, :what)"), {"saga": saga.id, "what": what}
    )
