"""A worker that claims messages without a key, for tests with many of them at once."""

from __future__ import annotations

import random
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from postroom.rules.lifecycle import ClaimLimits
from postroom.store.outbox.leases import Claimed, Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.sql.dialect import whole_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.synchronize import Barrier
    from pathlib import Path
    from typing import BinaryIO

    from postroom.store.connections.stores import BlockingStore
    from tests.contract.store_drivers import Driver

LONG = 60.0
SHORT = 0.05
"""Seconds of a lease that ends, or is about to, when its holder gets round to settling."""

HOLDING = "CREATE TABLE holding (position bigint PRIMARY KEY)"
"""Whoever holds a message writes it in here, so that a second holder at the same time is an error."""


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """What a worker wrote down about one claim of one message."""

    position: int
    token: int
    number: int
    """Which claim of this message it was: 1 for the first."""
    seconds: float
    ends: str | None
    """When the lease ends by the database's clock; None if it had gone to another before the worker could look."""
    settled: bool


def read_notes(log: Path) -> list[Noted]:
    return [msgspec.json.decode(line, type=Noted) for line in log.read_bytes().splitlines()]


class ClaimWorker:
    """One worker with its store. Its choices follow from its name."""

    def __init__(self, name: str, store: BlockingStore) -> None:
        self.name = name
        self.store = store
        # Claimed again and again is what the expiring leases are for, and no reason to give up a message.
        self.deliveries: QueueStore = QueueStore(store.names, limits=ClaimLimits(alone_after=1000, dead_after=2000))
        self.chance = random.Random(name)  # noqa: S311 - repeatable, not secret

    def claims(self, seconds: Sequence[float]) -> Iterator[tuple[list[Claimed], float]]:
        """Claim, each time for one of these times, until all is settled, of which an empty claim is no proof."""
        while True:
            lease = self.chance.choice(seconds)
            claim = self.store.run(self.deliveries.rows.claim(self.name, self.chance.randint(50, 200), lease))
            if claim.messages:
                yield claim.messages, lease
            elif not self._unsettled():
                return

    def _unsettled(self) -> int:
        found = self.store.run(
            self.deliveries.sql.statement(f"SELECT count(*) FROM {self.deliveries.sql.delivery}", {})
        )
        return int(found[0][0])

    def settle(self, claimed: Sequence[Claimed]) -> set[int]:
        """Settle as sent; returns the positions of those that were lost."""
        sent = [Sent(one, str(one.token)) for one in claimed]
        return {one.position for one in self.store.run(self.deliveries.settlements.settle(sent))}

    def write(self, statement: str) -> None:
        self.store.run(self.deliveries.sql.statement(statement, {}))

    def lease_ends(self, claimed: Sequence[Claimed]) -> dict[int, str]:
        d = self.deliveries
        found = self.store.run(
            d.sql.statement(
                f"SELECT position, leased_until FROM {d.sql.delivery} WHERE state = 0 AND queue = :queue "
                f"AND {d.sql.places(claimed)} AND token = {claimed[0].token}",
                {"queue": d.queue},
            )
        )
        moments = {position: d.sql.dialect.read_moment(ends) for position, ends in found}
        return {position: moment.isoformat() for position, moment in moments.items() if moment}


def hold_and_settle(name: str, driver: Driver, url: str, start: Barrier) -> None:
    """Claim under leases that do not end, note in the table `holding` what is held, settle."""
    with closing(driver.open(url)) as store:
        worker = ClaimWorker(name, store)
        start.wait()
        for claimed, _ in worker.claims([LONG]):
            positions = [one.position for one in claimed]
            worker.write(f"INSERT INTO holding VALUES {', '.join(f'({position})' for position in positions)}")
            worker.write(f"DELETE FROM holding WHERE position IN ({whole_numbers(positions)})")
            assert worker.settle(claimed) == set()


def dawdle_and_settle(name: str, driver: Driver, url: str, start: Barrier, log: Path) -> None:
    """Claim under leases of which a third end soon; some are settled late, some only when all is over."""
    with closing(driver.open(url)) as store, log.open("wb") as file:
        worker = ClaimWorker(name, store)
        abandoned: list[tuple[list[Claimed], dict[int, str]]] = []
        late: list[tuple[list[Claimed], dict[int, str]]] = []
        start.wait()
        for claimed, seconds in worker.claims([LONG, LONG, SHORT]):
            ends = worker.lease_ends(claimed)
            while late:
                _settle_and_note(worker, file, *late.pop(), SHORT)
            if seconds == LONG:
                _settle_and_note(worker, file, claimed, ends, LONG)
            else:
                worker.chance.choice([abandoned, late]).append((claimed, ends))
        for claimed, ends in late + abandoned:
            _settle_and_note(worker, file, claimed, ends, SHORT)


def _settle_and_note(
    worker: ClaimWorker, file: BinaryIO, claimed: Sequence[Claimed], ends: dict[int, str], seconds: float
) -> None:
    lost = worker.settle(claimed)
    for one in claimed:
        settled = one.position not in lost
        noted = Noted(one.position, one.token, one.claims, seconds, ends.get(one.position), settled)
        file.write(msgspec.json.encode(noted) + b"\n")
