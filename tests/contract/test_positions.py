"""A delivery has the position of its own message, whatever else inserts on the connection."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

import aiosqlite
from sqlalchemy import create_engine, event, text

from postroom import Outbox
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.schema.migrations import upgrade

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase

OUTBOX = Outbox()
PAIRS = "SELECT m.topic, d.size FROM {} m LEFT JOIN {} d ON d.position = m.position ORDER BY m.topic"


def pairs(store: Store) -> str:
    tables = store.names.mapping()
    return PAIRS.format(tables["outbox"], tables["delivery"])


def test_tasks_may_add_on_one_connection_at_once(fresh_database: FreshDatabase) -> None:
    """† With SQLite's last_insert_rowid(), the deliveries of all would have the position of the last."""
    url = fresh_database("sqlite")
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))

        async def add() -> list[Any]:
            async with aiosqlite.connect(str(resolve(url).database)) as connection:
                await asyncio.gather(*(OUTBOX.aadd(connection, f"t{n}", b"x" * (n + 1)) for n in range(5)))
                await connection.commit()
                return list(await connection.execute_fetchall(pairs(store)))

        assert asyncio.run(add()) == [(f"t{n}", n + 1) for n in range(5)]


def test_triggers_and_listeners_may_number_rows_of_their_own(fresh_database: FreshDatabase) -> None:
    """† MariaDB's last_insert_id() is the message's position again when a trigger has ended, but not for a listener."""
    url = fresh_database("mariadb")
    engine = create_engine(resolve(url))
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        outbox = store.names.mapping()["outbox"]
        with engine.begin() as connection:
            for statement in (
                "CREATE TABLE log (n INTEGER AUTO_INCREMENT PRIMARY KEY, topic TEXT)",
                f"CREATE TRIGGER logging AFTER INSERT ON {outbox} FOR EACH ROW INSERT INTO log (topic) VALUES ('one')",
            ):
                connection.execute(text(statement))
            OUTBOX.add(connection, "a", b"12345")

            @event.listens_for(connection, "after_cursor_execute")
            def log(_connection: object, cursor: Any, *_rest: object) -> None:
                cursor.connection.cursor().execute("INSERT INTO log (topic) VALUES ('heard')")

            OUTBOX.add(connection, "b", b"12345")
            event.remove(connection, "after_cursor_execute", log)
            connection.execute(text("INSERT INTO log (topic) VALUES ('mine')"))
            OUTBOX.add(connection, "c", b"12345")
            assert list(connection.execute(text(pairs(store)))) == [("a", 5), ("b", 5), ("c", 5)]
            assert connection.scalar(text("SELECT count(*) FROM log WHERE topic = 'heard'"))
    engine.dispose()
