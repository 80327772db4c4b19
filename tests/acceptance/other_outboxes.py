"""Outboxes that people come from, each with the tables that its own code makes, and a producer that uses it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from txoutbox.adapters.postgres import PostgresStorage
from txoutbox.adapters.sqlite import SqliteStorage

from postroom.store.connections.urls import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCER = Path(__file__).with_name("django_outbox_producer.py")
DEBEZIUM_TABLE = {
    # As Debezium's documentation of the outbox event router has it ("Basic outbox table", 3.x), in each database.
    "postgresql": "CREATE TABLE outboxevent (id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
    "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)",
    "mariadb": "CREATE TABLE outboxevent (id varchar(36) NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
    "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload json)",
}


def run(url: str, statement: str, **params: Any) -> list[tuple[Any, ...]]:
    """Run a statement as the owner of the database."""
    engine = create_engine(resolve(url))
    try:
        with engine.begin() as connection:
            found = connection.execute(text(statement), params)
            return [tuple(row) for row in found] if found.returns_rows else []
    finally:
        engine.dispose()


def django_outbox_pattern(url: str, rows: Sequence[dict[str, Any]]) -> list[UUID]:
    """Tables of django-outbox-pattern, by its migrations, and rows, by its model; returns their ids."""
    command = [sys.executable, "-W", "error", str(PRODUCER), url]
    ended = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return [UUID(line) for line in ended.stdout.split()]


def txoutbox(url: str, rows: Sequence[tuple[str, Any, str | None]], table: str = "outbox") -> None:
    """The table of txoutbox, by its own DDL, and rows: topic, payload, key."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        storage = SqliteStorage(path, table=table)
        try:
            storage.create_schema()
            with closing(sqlite3.connect(path)) as connection, connection:
                for topic, payload, key in rows:
                    storage.insert(connection, topic, payload, key=key, headers={"tenant": "7"})
        finally:
            storage.close()
        return

    async def fill() -> None:
        connection = await asyncpg.connect(
            resolve(url).set(drivername="postgresql").render_as_string(hide_password=False)
        )
        try:
            storage = PostgresStorage(connection, table=table)
            await storage.create_schema()
            async with connection.transaction():
                for topic, payload, key in rows:
                    await storage.insert(connection, topic, payload, key=key, headers={"tenant": "7"})
        finally:
            await connection.close()

    asyncio.run(fill())


def faststream_outbox(url: str, bodies: Sequence[tuple[Any, dict[str, Any]]], table: str = "outbox") -> None:
    """The table of faststream-outbox, by its own factory, and rows, by its broker: each a body and its options."""

    async def fill() -> None:
        engine = create_async_engine(resolve(url).set(drivername="postgresql+asyncpg"))
        metadata = MetaData()
        made = make_outbox_table(metadata, table)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        broker = OutboxBroker(engine, outbox_table=made)
        async with AsyncSession(engine) as session, session.begin():
            for body, options in bodies:
                await broker.publish(body, session=session, **options)
        await engine.dispose()

    asyncio.run(fill())


def debezium(url: str, kind: str, rows: Sequence[tuple[str, str, str, object]]) -> list[UUID]:
    """A table for Debezium's event router, and rows: aggregate type and id, type, payload."""
    run(url, DEBEZIUM_TABLE[kind])
    ids = [uuid4() for _ in rows]
    for identifier, (aggregate, key, event, payload) in zip(ids, rows, strict=True):
        run(
            url,
            "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES (:id, :a, :k, :t, :p)",
            id=str(identifier),
            a=aggregate,
            k=key,
            t=event,
            p=json.dumps(payload),
        )
    return ids


HOUR = timedelta(hours=1)
