"""What the tests of the write side share: a prepared database, and what another connection sees in it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from sqlalchemy import URL, Connection, make_url

from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.dialect import DIALECTS
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from postroom import Message


class Database:
    """A database with Postroom's tables and one of the application's own, `business`, seen from outside."""

    def __init__(self, url: str) -> None:
        self.url: URL = make_url(url)
        self.store = Store(url)
        self.store.call(self._prepare)

    def _prepare(self, connection: Connection) -> None:
        upgrade(connection, self.store.names)
        connection.exec_driver_sql("CREATE TABLE business (id varchar(36) PRIMARY KEY)")
        connection.commit()

    def rows(self, text: str, **params: Any) -> Sequence[Row]:
        """What a statement finds. `{outbox}`, `{delivery}` and the like stand for the tables' names."""
        return self.store.run(_rows(Query(text.format(**self.store.names.mapping()), params)))

    def stored(self, messages: Iterable[Message]) -> int:
        """How many of the messages are there, each with its one delivery."""
        ids = ", ".join(f"'{message.id}'" for message in messages)
        found = self.rows(f"SELECT count(*) FROM {{outbox}} JOIN {{delivery}} USING (position) WHERE id IN ({ids})")
        return int(found[0][0])

    def read(self, message: Message) -> Message:
        """The message as it is read back; without what only the database could know, when it was recorded."""
        operations = Operations(self.store.names)
        [row] = self.rows(f"SELECT {operations.columns} FROM {{outbox}} m WHERE m.id = :id", id=str(message.id))
        found = operations.message((None, 0, 0, 0, 0, False, *row))  # as a claim reads it
        assert found.created_at is not None
        assert abs(datetime.now(UTC) - found.created_at) < timedelta(minutes=1)
        return msgspec.structs.replace(found, created_at=None)

    def has_mark(self, consumer: str, message_id: object) -> bool:
        found = self.rows(
            "SELECT 1 FROM {inbox} WHERE consumer = :consumer AND message_id = :message_id",
            consumer=consumer,
            message_id=str(message_id),
        )
        return bool(found)

    def moment(self, value: Any) -> datetime | None:
        """A moment as a statement found it."""
        return DIALECTS[self.store.names.dialect]().read_moment(value)

    def has_business(self, *identifiers: str) -> bool:
        ids = ", ".join(f"'{identifier}'" for identifier in identifiers)
        found = self.rows(f"SELECT count(*) FROM business WHERE id IN ({ids})")
        return int(found[0][0]) == len(identifiers)

    def size(self) -> tuple[int, int]:
        """How many messages and deliveries there are in all."""
        found = self.rows("SELECT (SELECT count(*) FROM {outbox}), (SELECT count(*) FROM {delivery})")
        return (int(found[0][0]), int(found[0][1]))


def _rows(query: Query) -> Steps[Sequence[Row]]:
    return (yield query).rows


def business_row() -> tuple[str, str]:
    """A statement that writes a row of the application's own, and the row's id."""
    identifier = str(uuid4())
    return f"INSERT INTO business (id) VALUES ('{identifier}')", identifier


class Databases:
    """One prepared database of each kind, made when a test first asks for it."""

    def __init__(self, create: Callable[[str], str]) -> None:
        self._create = create
        self._made: dict[str, Database] = {}

    def __getitem__(self, kind: str) -> Database:
        if kind not in self._made:
            self._made[kind] = Database(self._create(kind))
        return self._made[kind]

    def close(self) -> None:
        for database in self._made.values():
            database.store.close()


@contextmanager
def prepared(create: Callable[[str], str]) -> Iterator[Databases]:
    databases = Databases(create)
    try:
        yield databases
    finally:
        databases.close()
