"""A producer as a process of its own: it adds messages in small transactions, of which it undoes some."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy.exc import OperationalError

from postroom import Message, Outbox
from postroom.log_outbox import LogOutbox
from tests.contract.schema_support import engine_for
from tests.crash.places import append

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from tests.crash.places import Places

CHUNK = 6
KEYS = 40
PACE = 0.01
"""Seconds between two transactions: a load that relays can follow on a small machine."""

GONE = (OperationalError, psycopg.OperationalError)
"""What it is told when PostgreSQL is not there, or goes away."""


def produce(name: str, url: str, places: Places, *, cdc: bool = False) -> None:
    """Add until it is enough. A transaction that the database breaks off is not tried again."""
    outbox = Outbox(cdc=cdc)
    chance = random.Random(name)  # noqa: S311 - repeatable, not secret
    patience = {"timeout": 30} if url.startswith("sqlite") else {}
    with engine_for(url, connect_args=patience) as engine:
        while not places.enough.exists():
            messages = [_message(chance) for _ in range(CHUNK)]
            try:
                if chance.random() < 0.2:
                    _note(places.undone, messages)
                    _undo(engine, outbox, messages)
                else:
                    _commit(engine, outbox, messages)
                    _note(places.acknowledged, messages)
            except GONE:
                if "sqlite" in url:
                    raise
            time.sleep(PACE)


def produce_log(name: str, url: str, places: Places) -> None:
    """Add messages that are in the log alone until it is enough."""
    outbox = LogOutbox()
    chance = random.Random(name)  # noqa: S311 - repeatable, not secret
    with engine_for(url) as engine:
        while not places.enough.exists():
            is_undone = chance.random() < 0.2
            with engine.connect() as connection:
                messages = [
                    outbox.add(connection, "orders.created", 0, key=f"log-{chance.randrange(KEYS)}")
                    for _ in range(CHUNK)
                ]
                if is_undone:
                    connection.rollback()
                else:
                    connection.commit()
            _note(places.undone if is_undone else places.logged, messages)
            time.sleep(PACE)


def _message(chance: random.Random) -> Message:
    key = f"key-{chance.randrange(KEYS)}" if chance.random() < 0.7 else None
    return Message.new("orders.created", {"total": chance.randrange(100)}, key=key)


def _commit(engine: Engine, outbox: Outbox, messages: list[Message]) -> None:
    with engine.begin() as connection:
        outbox.add_many(connection, messages)


def _undo(engine: Engine, outbox: Outbox, messages: list[Message]) -> None:
    with engine.connect() as connection:
        outbox.add_many(connection, messages)
        connection.rollback()


def _note(path: Path, messages: list[Message]) -> None:
    append(path, *(str(one.id).encode() for one in messages))
