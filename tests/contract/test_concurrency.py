"""Many workers at once, each a process of its own, on every database."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Outbox
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from tests.contract.schema_support import engine_for, execute
from tests.contract.store_drivers import DRIVERS, Room
from tests.crash.claim_worker import HOLDING, Noted, dawdle_and_settle, hold_and_settle, read_notes
from tests.crash.processes import Processes, barrier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase
    from tests.contract.store_drivers import Driver

MESSAGES = 20_000
FEWER = 5_000
"""Each of these is claimed again and again, because its lease ends."""
WORKERS = [f"worker-{number}" for number in range(1, 9)]

# One driver of each kind for each database that has rows to lock; what drivers may differ in is tested elsewhere.
on_every_database = pytest.mark.parametrize(
    "driver",
    [driver for driver in DRIVERS if driver.name in {"sqlite3", "psycopg", "asyncpg", "pymysql"}],
    ids=lambda driver: driver.name,
)


@pytest.fixture
def url(driver: Driver, fresh_database: FreshDatabase) -> str:
    return fresh_database(driver.kind)


@pytest.fixture
def full_room(driver: Driver, url: str, messages: int) -> Iterator[Room]:
    with closing(driver.open(url)) as store, closing(Store(url)) as producer:
        producer.call(lambda connection: upgrade(connection, producer.names))
        with engine_for(url) as engine, engine.begin() as connection:
            Outbox().add_many(connection, [Message.new("orders", {"number": number}) for number in range(messages)])
        yield Room(store, driver, producer)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with closing(Processes(tmp_path)) as processes:
        yield processes


@on_every_database
@pytest.mark.parametrize("messages", [MESSAGES], ids=[""])
def test_L_2_eight_claimers_never_hold_the_same_message_at_once(
    driver: Driver, url: str, full_room: Room, processes: Processes
) -> None:
    with engine_for(url) as engine:
        execute(engine, HOLDING)
    start = barrier(len(WORKERS))
    workers = [processes.start(name, hold_and_settle, driver, url, start) for name in WORKERS]
    for worker in workers:
        worker.join()
    assert list(full_room.receipts().values()) == ["sent"] * MESSAGES
    assert full_room.positions() == []


@on_every_database
@pytest.mark.parametrize("messages", [FEWER], ids=[""])
def test_L_3_a_stale_token_never_settles_while_leases_end_and_go_to_others(
    driver: Driver, url: str, full_room: Room, processes: Processes
) -> None:
    start = barrier(len(WORKERS))
    logs = [processes.directory / name for name in WORKERS]
    workers = [
        processes.start(name, dawdle_and_settle, driver, url, start, log)
        for name, log in zip(WORKERS, logs, strict=True)
    ]
    for worker in workers:
        worker.join()
    notes = sorted((noted for log in logs for noted in read_notes(log)), key=lambda one: (one.position, one.number))
    claims = [list(of_one) for _, of_one in groupby(notes, key=lambda one: one.position)]
    answers = dict(full_room.select("SELECT position, answer FROM {receipt}"))
    assert len(claims) == len(answers) == FEWER
    assert full_room.positions() == []
    for of_one in claims:
        assert [noted.number for noted in of_one] == list(range(1, len(of_one) + 1))
        assert [noted.settled for noted in of_one] == [False] * (len(of_one) - 1) + [True]
        assert answers[of_one[-1].position] == str(of_one[-1].token)
        assert not [pair for pair in pairwise(of_one) if overlap(*pair)]
    assert len(notes) > FEWER, "no lease ended: the test has shown nothing"


def overlap(earlier: Noted, later: Noted) -> bool:
    """Say whether the second lease began before the first had ended, by the database's clock."""
    if earlier.ends is None or later.ends is None:
        return False
    begins = datetime.fromisoformat(later.ends) - timedelta(seconds=later.seconds)
    return begins < datetime.fromisoformat(earlier.ends)
