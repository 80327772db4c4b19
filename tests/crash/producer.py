"""A producer for the order tests: hot keys, cold keys, no key; poison; and transactions that are undone."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from postroom import Message
from postroom.store.connections.kinds import sync_kind
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.steps import run
from tests.crash.order_worker import QUEUES

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom.store.sql.names import Names

HOT = [f"hot-{number}" for number in range(10)]
COLD = [f"cold-{number}" for number in range(190)]
CHUNK = 75


class Producer:
    """Adds messages in small transactions, for each queue in turn. One in ten transactions is rolled back."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self.committed: set[str] = set()
        self._connection = connection
        self._writers = [WRITERS[names.dialect](names, queue) for queue in QUEUES]
        self._chance = random.Random(4711)  # noqa: S311 - repeatable, not secret
        self._made = 0

    def add(self, count: int) -> None:
        """Have so many messages more committed."""
        wanted = len(self.committed) + count
        while len(self.committed) < wanted:
            undone = self._chance.random() < 0.1
            messages = [self._message(undone=undone) for _ in range(CHUNK)]
            writer = self._writers[self._made // CHUNK % len(self._writers)]
            run(writer.add(messages), sync_kind(self._connection, "add").execute)
            if undone:
                self._connection.rollback()
            else:
                self._connection.commit()
                self.committed |= {message.topic for message in messages}

    def _message(self, *, undone: bool) -> Message:
        self._made += 1
        key = self._chance.choice([self._chance.choice(HOT), self._chance.choice(COLD), self._chance.choice(COLD)])
        kind = "sound"
        if undone:
            kind = "undone"
        elif self._chance.random() < 0.03 and key not in HOT:
            kind = "poison"
        return Message.new(f"{kind}-{self._made}", key=None if self._chance.random() < 0.1 else key)
