"""Floors: bare loops of claim and ack on PostgreSQL, with nothing around them. No relay can be faster."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from postroom.store.connections.opening import options_of
from postroom.store.connections.urls import with_driver
from postroom.store.outbox.leases import new_token
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import ready

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from postroom.bench.scratch import Scratch
    from postroom.message import Message
    from postroom.store.sql.steps import Row

    Send = Callable[[Sequence[Message]], Awaitable[object]]

BATCH = 1000
LEASE = "interval '120 seconds'"
STEERED = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")


class Floor:
    """Two connections, each with one statement that acks its last batch and claims the next.

    A full floor also builds the messages and, if `send` is given, acks them after it has returned.
    """

    def __init__(self, place: Scratch, *, full: bool, send: Send | None = None) -> None:
        tables = place.names.mapping()
        self._operations = Operations(place.names)
        self._full = full
        self._send = send
        self._url = with_driver(place.url, asynchronous=True)
        receipts = f"""receipts AS (
                INSERT INTO {tables["receipt"]} (position, attempts, outcome)
                SELECT position, attempts, 'sent' FROM acked
            ),"""  # noqa: S608 - names that were validated
        what = f"d.position, d.lane, d.attempts, d.claims, d.size, false, {self._operations.columns}"
        self._statement = f"""
            WITH given AS MATERIALIZED (
                SELECT 0::smallint AS state, 'default'::text COLLATE "C" AS queue, -1::smallint AS lane, position
                FROM unnest($1::text::bigint[]) AS given (position)
            ), acked AS (
                DELETE FROM {tables["delivery"]} d USING given
                WHERE d.state = given.state AND d.queue = given.queue AND d.lane = given.lane
                  AND d.position = given.position AND d.token = $2
                RETURNING d.position, d.attempts
            ), {receipts if full else ""} free AS (
                SELECT d.ctid FROM {tables["delivery"]} d
                WHERE {ready("d")} AND d.queue = 'default' AND d.lane = -1 AND d.position > $4
                  AND d.leased_until <= statement_timestamp()
                ORDER BY d.position LIMIT {BATCH} FOR UPDATE SKIP LOCKED
            ), leased AS (
                UPDATE {tables["delivery"]} d
                SET token = $3, owner = 'floor', claims = d.claims + 1, leased_until = statement_timestamp() + {LEASE}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM free))
                RETURNING d.position, d.lane, d.attempts, d.claims, d.size
            )
            SELECT {what if full else "m.position, m.payload"}
            FROM leased d JOIN {tables["outbox"]} m ON m.position = d.position"""  # noqa: S608 - names that were validated

    async def drain(self) -> float:
        """Ack everything. Returns messages per second, measured with open connections."""
        connections = [await self.connect(), await self.connect()]
        started = time.perf_counter()
        done = sum(await asyncio.gather(*map(self._loop, connections)))
        seconds = time.perf_counter() - started
        for connection in connections:
            await connection.close()
        return done / seconds

    async def _loop(self, connection: Any) -> int:
        done, token = 0, 0
        positions: list[int] = []
        while True:
            fresh = new_token()
            rows = await self.step(connection, positions, token, fresh, positions[-1] if positions else 0)
            token = fresh
            if self._full:
                built = [self._operations.message(row) for row in rows]
                if self._send is not None and built:
                    await self._send(built)
            positions = sorted([row[0] for row in rows])
            done += len(positions)
            if not positions:
                return done

    async def step(
        self, connection: Any, positions: Sequence[int], token: int, fresh: int, after: int
    ) -> Sequence[Row]:
        """Ack these, and claim the next."""
        acked = f"{{{','.join(map(str, positions))}}}"
        rows: Sequence[Row] = await connection.fetch(self._statement, acked, token, fresh, after)
        return rows

    async def connect(self) -> Any:
        """A connection whose planner keeps to the indexes."""
        import asyncpg

        connection = await asyncpg.connect(**options_of(self._url).named)
        for setting in STEERED:
            await connection.execute(f"SET {setting} = off")
        return connection
