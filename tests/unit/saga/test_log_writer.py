"""The log writer: one bad log, one locked instance and one lost answer stop no other."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.saga.messages import signal_message
from postroom.saga.running import log_writer
from postroom.saga.running.journal import Record
from postroom.saga.running.log_writer import TRIES, LogWriter
from postroom.store.connections.reconnecting import CannotWrite, Outage
from postroom.store.connections.shared import SteppedAside
from postroom.store.outbox.leases import Claimed
from postroom.store.saga.values import Entry, Logged, LogItem

MESSAGE = signal_message("order", "one", "parcel", None)


class Database:
    """As much of a store and its connection as matters: remembers which logs came in which statement."""

    def __init__(self) -> None:
        self.statements: list[list[int]] = []
        self.refused: set[int] = set()
        self.locked: dict[int, int] = {}
        """How often each is found locked."""
        self.is_away = 0
        """How often it will be asked in vain whether it answers."""
        self.steps_aside = 0
        self.is_full = 0
        """How often it will store nothing although it answers."""

    def log_many(self, items: list[LogItem]) -> list[int]:
        return [item.claimed.position for item in items]

    async def attempt(self, positions: list[int]) -> list[Logged]:
        self.statements.append(positions)
        await asyncio.sleep(0)
        if self.steps_aside:
            self.steps_aside -= 1
            raise SteppedAside("it took too long")
        if self.is_full:
            self.is_full -= 1
            raise CannotWrite("full")
        if self.is_away:
            raise Outage("away")
        if self.refused & set(positions):
            raise Outage("refused")
        return [self._logged(position) for position in positions]

    def _logged(self, position: int) -> Logged:
        if not self.locked.get(position):
            return Logged.WRITTEN
        self.locked[position] -= 1
        return Logged.LOCKED

    async def answers(self) -> bool:
        was_away, self.is_away = self.is_away, max(0, self.is_away - 1)
        return not was_away


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "FIRST_LOCKED", "LONGEST_LOCKED"):
        monkeypatch.setattr(log_writer, name, 0.0)
    return Database()


async def logged(database: Database, number: int) -> list[Any]:
    """Hand over so many logs at once; what became of each."""
    writer = LogWriter(cast("Any", database), cast("Any", database))
    record = Record([Entry(Direction.FORWARD, "charge", StepOutcome.DONE, result=b"1" * 10)])
    claims = [Claimed(n, NO_LANE, n, 0, 1, MESSAGE) for n in range(number)]
    found = await asyncio.gather(*(writer.log(one, record) for one in claims), return_exceptions=True)
    return list(found)


async def test_logs_that_end_together_are_one_statement(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await logged(database, 7) == [Logged.WRITTEN] * 7
    assert database.statements == [[0, 1, 2, 3, 4, 5, 6]]
    monkeypatch.setattr(log_writer, "MOST_BYTES", 25)
    assert await logged(database, 5) == [Logged.WRITTEN] * 5
    assert database.statements[1:] == [[0, 1], [2, 3], [4]]


async def test_the_one_that_is_refused_is_found_by_halves(database: Database) -> None:
    database.refused = {5}
    found = await logged(database, 8)
    assert [n for n, one in enumerate(found) if isinstance(one, Outage)] == [5]
    assert found.count(Logged.WRITTEN) == 7
    halves = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], *[[5]] * TRIES, [6, 7]]
    assert database.statements == halves


async def test_all_wait_together_while_the_database_is_away(database: Database) -> None:
    database.is_away, database.steps_aside = 4, 1
    assert await logged(database, 3) == [Logged.WRITTEN] * 3
    assert database.statements == [[0, 1, 2]] * 6


async def test_all_wait_together_while_the_disk_is_full_however_long(database: Database) -> None:
    database.is_full = TRIES + 1
    assert await logged(database, 3) == [Logged.WRITTEN] * 3
    assert database.statements == [[0, 1, 2]] * (TRIES + 2)


async def test_one_that_is_locked_holds_up_no_other(database: Database) -> None:
    database.locked = {1: 3}
    assert await logged(database, 3) == [Logged.WRITTEN] * 3
    assert database.statements == [[0, 1, 2], [1], [1], [1]]


async def test_what_waits_for_a_lock_is_given_up_when_the_writer_is_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "FIRST_LOCKED", 3600.0)
    database.locked = {0: 1}
    writer = LogWriter(cast("Any", database), cast("Any", database))
    task = asyncio.create_task(writer.log(Claimed(0, NO_LANE, 1, 0, 1, MESSAGE), Record([])))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (database.statements, database.locked, task.done()) == ([[0]], {0: 0}, False)
    writer.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
