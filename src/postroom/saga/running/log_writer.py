"""The log writer: writes the logs of many instances in one statement, as they end in the same moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from postroom.runtime.backoff import Backoff
from postroom.store.connections.reconnecting import FIRST_PAUSE, LONGEST_PAUSE, CannotWrite, Outage
from postroom.store.connections.shared import SteppedAside
from postroom.store.saga.values import Logged, LogItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.saga.running.journal import Record
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.saga_store import SagaStore

MOST = 1000
"""Instances in one statement."""
MOST_BYTES = 4 * 1024 * 1024
"""Results and data in one statement."""
FIRST_LOCKED, LONGEST_LOCKED = 0.01, 1.0
"""Seconds until a log is tried again whose instance is locked."""
TRIES = 3
"""Attempts to write a single log that the database refuses although it answers."""


class _Waiting(NamedTuple):
    item: LogItem
    size: int
    written: asyncio.Future[Logged]
    locked: Backoff


class LogWriter:
    """Writes what is handed to it; what is handed to it meanwhile is written next.

    An instance that somebody else has locked comes again after a pause, so that the others do not wait for it.

    A log may be written twice, if the answer to the first try got lost: then it is `DONE_BEFORE`, and the instance
    finds its own log when it reads its record.
    """

    def __init__(self, store: SagaStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        self._later: set[asyncio.TimerHandle] = set()

    async def log(self, claimed: Claimed, record: Record) -> Logged:
        """Write a record. Waits while the database is away; raises `Outage` if it refuses this record."""
        size = sum(len(entry.result or b"") + len(entry.data or b"") for entry in record.entries)
        written: asyncio.Future[Logged] = asyncio.get_running_loop().create_future()
        item = LogItem(claimed, record.entries, record.end, record.tell, record.keeps_attempts)
        self._add(_Waiting(item, size, written, Backoff(FIRST_LOCKED, LONGEST_LOCKED)))
        return await written

    def _add(self, one: _Waiting) -> None:
        self._waiting.append(one)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="postroom-saga-log")

    def close(self) -> None:
        """Stop writing: the leases of what waits end by themselves."""
        for later in self._later:
            later.cancel()
        if self._writing is not None:
            self._writing.cancel()

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write(self._take())
        finally:
            self._writing = None

    def _take(self) -> list[_Waiting]:
        """Take as many as fit into one statement, at least one."""
        size = count = 0
        for one in self._waiting[:MOST]:
            size += one.size
            if count and size > MOST_BYTES:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    async def _write(self, waiting: Sequence[_Waiting]) -> None:
        backoff, refused = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0
        while True:
            try:
                logged = await self._connection.attempt(self._store.log_many([one.item for one in waiting]))
            except SteppedAside:
                continue
            except Outage as outage:
                if not isinstance(outage, CannotWrite) and await self._connection.answers():
                    if len(waiting) > 1:  # it is the statement: find out which log is at fault
                        middle = len(waiting) // 2
                        await self._write(waiting[:middle])
                        await self._write(waiting[middle:])
                        return
                    refused += 1
                    if refused == TRIES:
                        _settle(waiting[0], outage)
                        return
                await asyncio.sleep(backoff.next())
            else:
                for one, result in zip(waiting, logged, strict=True):
                    if result is Logged.LOCKED:
                        self._add_later(one)
                    else:
                        _settle(one, result)
                return

    def _add_later(self, one: _Waiting) -> None:
        def add() -> None:
            self._later.discard(timer)
            self._add(one)

        if not one.written.done():
            timer = asyncio.get_running_loop().call_later(one.locked.next(), add)
            self._later.add(timer)


def _settle(one: _Waiting, result: Logged | Outage) -> None:
    if one.written.done():  # whoever waited was cancelled
        return
    if isinstance(result, Outage):
        one.written.set_exception(result)
    else:
        one.written.set_result(result)
