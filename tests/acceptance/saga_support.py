"""Sagas at work, for tests: a relay that runs them, and what the database says of them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import text

from postroom import Relay
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom import Saga
    from tests.acceptance.service import Service


@asynccontextmanager
async def at_work(
    service: Service, *sagas: Saga[Any], events: list[Any] | None = None, **settings: Any
) -> AsyncIterator[Relay]:
    """A relay runs these sagas."""
    hook = None if events is None else events.append
    async with Relay(service.url, sagas=sagas, hook=hook, poll_interval_sec=0.05, **settings) as relay:
        yield relay


class Sagas:
    """What a service's database says of its sagas."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def start(self, saga: Saga[Any], id: str, data: Any = None, **options: Any) -> None:
        with self.service.engine.begin() as connection:
            saga.start(connection, {} if data is None else data, id=id, **options)

    def signal(self, saga: Saga[Any], id: str, event: str, payload: Any = None) -> None:
        with self.service.engine.begin() as connection:
            saga.signal(connection, id, event, payload)

    async def abort(self, saga: Saga[Any], id: str, **options: Any) -> None:
        """Abort in a thread: a relay in this event loop may have locked what the abort waits for."""

        def abort() -> None:
            with self.service.engine.begin() as connection:
                saga.abort(connection, id, **options)

        await asyncio.to_thread(abort)

    def outcomes(self) -> dict[str, str]:
        """How each instance stands, by id."""
        rows = self.service.rows(f"SELECT id, outcome FROM {self.service.table('saga')}")
        return {str(of): {0: "open", 1: "completed", 2: "compensated"}[int(str(outcome))] for of, outcome in rows}

    def instance(self, id: str) -> dict[str, Any]:
        """The row of an instance."""
        saga = self.service.table("saga")
        with self.service.engine.begin() as connection:
            row = connection.execute(text(f"SELECT {INSTANCE} FROM {saga} WHERE id = :id"), {"id": id}).mappings().one()
        return dict(row)

    def delivery(self, id: str) -> dict[str, Any] | None:
        """The delivery of an instance, if it has one."""
        where = f"position = (SELECT position FROM {self.service.table('saga')} WHERE id = :id)"
        with self.service.engine.begin() as connection:
            found = connection.execute(
                text(f"SELECT {DELIVERY} FROM {self.service.table('delivery')} WHERE {where}"), {"id": id}
            )
            row = found.mappings().one_or_none()
        return None if row is None else dict(row)

    def steps(self, id: str) -> list[tuple[str, str, str]]:
        """Direction, step and outcome of what is on record for an instance, in order."""
        where = f"position = (SELECT position FROM {self.service.table('saga')} WHERE id = '{id}')"
        rows = self.service.rows(
            f"SELECT direction, step, outcome FROM {self.service.table('saga_step')} WHERE {where} ORDER BY number"
        )
        outcomes = {1: "done", 2: "waiting", 3: "skipped", 4: "failed"}
        return [
            ("back" if int(str(direction)) else "forward", str(step), outcomes[int(str(outcome))])
            for direction, step, outcome in rows
        ]

    def effects(self) -> list[str]:
        """What steps wrote, in order."""
        return [str(what) for (what,) in self.service.rows("SELECT what FROM effect ORDER BY n")]

    async def ended(self, **outcomes: str) -> None:
        """Wait until these instances have ended so."""
        await wait_for(lambda: outcomes.items() <= self.outcomes().items())

    async def state(self, id: str, state: int) -> dict[str, Any]:
        """Wait until the instance's delivery is in this state, and return it."""
        await wait_for(lambda: (self.delivery(id) or {}).get("state") == state)
        found = self.delivery(id)
        assert found is not None
        return found


EFFECTS = {
    "sqlite": "CREATE TABLE effect (n INTEGER PRIMARY KEY AUTOINCREMENT, what VARCHAR(100))",
    "postgresql": "CREATE TABLE effect (n SERIAL PRIMARY KEY, what VARCHAR(100))",
    "mysql": "CREATE TABLE effect (n INTEGER AUTO_INCREMENT PRIMARY KEY, what VARCHAR(100))",
}
DELIVERY = "position, state, attempts, claims, error_code, error_message"
INSTANCE = "position, direction, outcome, failed_step, error_code, error_message, aborted_by"
INSERT = text("INSERT INTO effect (what) VALUES (:what)")


def write(saga: Any, what: str) -> None:
    """Write an effect in a sync step's transaction."""
    saga.connection.execute(INSERT, {"what": what})


async def awrite(saga: Any, what: str) -> None:
    """`write` for an async step."""
    await saga.connection.execute(INSERT, {"what": what})


def decoded(payload: Any) -> Any:
    """What JSON in a column says."""
    return msgspec.json.decode(bytes(payload))
