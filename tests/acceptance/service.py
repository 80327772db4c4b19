"""A service with its database, for tests of the relay."""

from __future__ import annotations

from sqlalchemy import Engine, create_engine, text

from postroom import Message, Outbox, dead_letters, insight
from postroom.store.migrations import upgrade
from postroom.store.stores import Store
from postroom.store.urls import resolve
from postroom.store.watching import Watching

LARGEST = 2 * 1024 * 1024
"""More than the test brokers take."""


class Service:
    """A service's database: its tables, a way to commit messages, and what the outbox says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = Store(url)
        self._store.call(lambda connection: upgrade(connection, self._store.names))
        self.engine: Engine = create_engine(resolve(url))

    def commit(self, *messages: Message) -> list[Message]:
        with self.engine.begin() as connection:
            return Outbox(max_payload_bytes=LARGEST).add_many(connection, messages)

    def status(self) -> insight.Status:
        return self._store.run(insight.status(Watching(self._store.names)))

    def dead_letters(self) -> list[dead_letters.DeadLetter]:
        return self._store.run(dead_letters.listed(self._store.names))

    def table(self, name: str) -> str:
        return self._store.names.mapping()[name]

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def close(self) -> None:
        self.engine.dispose()
        self._store.close()
