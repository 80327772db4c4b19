"""The store's lease protocol next to a bare loop of claim and ack, on PostgreSQL through asyncpg."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg

from benchmarks.rounds import create_tables, per_second, show
from postroom import Message, Outbox
from postroom.store.connections.stores import AsyncStore
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.sql.steps import arun
from tests.services import registry
from tests.services.databases import fresh_database

MESSAGES = 20_000
BATCH = 1000
PAYLOAD = b"x" * 200

CLAIM = """
    WITH free AS (
        SELECT ctid FROM postroom.outbox_delivery
        WHERE state = 0 AND queue = 'default' AND lane = -1 AND leased_until <= statement_timestamp()
        ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED
    ), leased AS (
        UPDATE postroom.outbox_delivery d SET token = $2, leased_until = statement_timestamp() + interval '30 seconds'
        WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM free)) RETURNING d.position
    )
    SELECT m.position, m.payload FROM leased JOIN postroom.outbox m USING (position)"""
ACK = """
    WITH gone AS (
        DELETE FROM postroom.outbox_delivery d
        WHERE d.state = 0 AND d.queue = 'default' AND d.lane = -1 AND d.position = ANY ($1) AND d.token = $2
        RETURNING d.position
    )
    INSERT INTO postroom.outbox_receipt (position, attempts, outcome) SELECT position, 0, 'sent' FROM gone"""


def main() -> None:
    """Measure draining messages without keys, messages with keys, and the bare loop."""
    with fresh_database("postgresql") as url:
        create_tables(url)
        with asyncio.Runner() as runner:
            rates = per_second(
                {
                    "bare claim and ack": lambda: _drained(runner.run(_bare(url))),
                    "store, messages without a key": lambda: _drained(runner.run(_rows(url))),
                    "store, 10,000 keys through lanes": lambda: _drained(runner.run(_lanes(url))),
                },
                prepare=lambda name: _fill(url, 10_000 if "keys" in name else None),
            )
    registry.close_all()
    show("claim and settle, one connection, batch 1,000", rates, "bare claim and ack", "messages/s")


def _fill(url: str, keys: int | None) -> None:
    messages = [Message.new("t", PAYLOAD, key=None if keys is None else str(n % keys)) for n in range(MESSAGES)]
    with psycopg.connect(url) as connection:
        Outbox().add_many(connection, messages)


def _drained(sent: int) -> int:
    if sent != MESSAGES:
        raise AssertionError(f"{sent} of {MESSAGES} messages were sent")
    return sent


async def _bare(url: str) -> int:
    connection = await asyncpg.connect(url)
    sent = 0
    try:
        for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
            await connection.execute(f"SET {setting} = off")
        while rows := await connection.fetch(CLAIM, BATCH, 1):
            await connection.execute(ACK, [row[0] for row in rows], 1)
            sent += len(rows)
    finally:
        await connection.close()
    return sent


async def _rows(url: str) -> int:
    store = AsyncStore(url)
    operations = QueueStore(store.names)
    sent = 0
    try:
        async with store.session() as execute:
            while claim := (await arun(operations.rows.claim("bench", BATCH, 30, due=False), execute)).messages:
                await arun(operations.settlements.settle([Sent(one) for one in claim]), execute)
                sent += len(claim)
    finally:
        await store.close()
    return sent


async def _lanes(url: str) -> int:
    store = AsyncStore(url)
    operations = QueueStore(store.names)
    sent = 0
    try:
        async with store.session() as execute:
            lanes = await arun(operations.lanes.take("bench", 30), execute)
            while claim := (await arun(operations.lanes.read(lanes, BATCH // 16, 30), execute)).messages:
                await arun(operations.settlements.settle([Sent(one) for one in claim]), execute)
                sent += len(claim)
            await arun(operations.lanes.release(lanes), execute)
    finally:
        await store.close()
    return sent
