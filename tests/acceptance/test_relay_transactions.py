"""A relay that recovers two-phase commits: beside a broker, by itself, and with what it can and cannot finish."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from postroom import Outbox, Relay, TwoPhaseCommit
from postroom.brokers.memory import MemoryBroker
from postroom.errors import InvalidSetting, TransactionInDoubt
from postroom.store.twophase.mysql import MySQLBranches
from postroom.store.twophase.postgresql import PostgreSQLBranches
from postroom.telemetry.transaction_events import TransactionEnd, TransactionRecovered, TransactionsInDoubt
from tests.acceptance.probing import plain_environment, wait_until
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from postroom.telemetry.events import Event
    from tests.conftest import FreshDatabase

APPLICATION = """
from postroom import TwoPhaseCommit

transfers = TwoPhaseCommit(log={shop!r}, participants={{"shop": {shop!r}, "bank": {bank!r}}})
"""


class Bank:
    """Two databases, of which one holds the log."""

    def __init__(self, shop: Service, bank: Service) -> None:
        self.shop, self.bank = shop, bank
        self.transfers = self.declared()
        for service in (shop, bank):
            service.execute("CREATE TABLE moved (number INTEGER PRIMARY KEY)")

    def declared(self, **more: Any) -> TwoPhaseCommit:
        return TwoPhaseCommit(self.shop.url, {"shop": self.shop.url, "bank": self.bank.url}, **{"timeout": 30, **more})

    def move(self, number: int) -> None:
        with self.transfers.begin() as transaction:
            for name in ("shop", "bank"):
                transaction[name].execute(text("INSERT INTO moved VALUES (:number)"), {"number": number})

    def left_behind(self, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Decide, and let the bank not hear of it."""
        with monkeypatch.context() as patch:
            for branches in (PostgreSQLBranches, MySQLBranches):
                patch.setattr(branches, "commit_prepared", _deaf)
            self.move(number)

    def moved(self) -> list[list[int]]:
        found = []
        for service in (self.shop, self.bank):
            with service.engine.connect() as connection:
                found.append(list(connection.scalars(text("SELECT number FROM moved ORDER BY number"))))
        return found


def _deaf(*_: object) -> Any:
    raise ConnectionResetError("the bank is away")


@pytest.fixture
def bank(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Bank]:
    kind = getattr(request, "param", "postgresql")
    with closing(Service(ready_database("postgresql"))) as shop, closing(Service(ready_database(kind))) as other:
        found = Bank(shop, other)
        yield found
        found.transfers.close()


@asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[None]:
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        relay.stop()
        await task


@pytest.mark.parametrize("bank", ["postgresql", "mariadb"], indirect=True)
async def test_T_2_a_relay_finishes_what_was_left_behind_beside_its_broker(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.twophase.recovery.SETTLING", 0.0)
    bank.move(1)
    bank.left_behind(2, monkeypatch)
    assert bank.moved() == [[1, 2], [1]]
    with bank.shop.engine.begin() as connection:
        Outbox().add(connection, "orders", {"number": 3})
    broker = MemoryBroker()
    events: list[Event] = []
    transfers = bank.declared()
    async with running(Relay(bank.shop.url, broker, transactions=[transfers], hook=events.append)):
        await wait_for(lambda: bank.moved() == [[1, 2], [1, 2]])
        await wait_for(lambda: broker.messages)
        await wait_for(lambda: any(isinstance(one, TransactionRecovered) for one in events))
    await transfers.aclose()
    (recovered,) = [one for one in events if isinstance(one, TransactionRecovered)]
    assert recovered.end is TransactionEnd.COMMITTED
    assert any(isinstance(one, TransactionsInDoubt) for one in events)
    assert not bank.shop.status().pending


async def test_T_2_a_relay_says_which_participant_it_cannot_ask_and_goes_on(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.twophase.recovery.SETTLING", 0.0)
    bank.left_behind(1, monkeypatch)
    nowhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    participants = {"shop": bank.shop.url, "bank": bank.bank.url, "away": nowhere}
    transfers = TwoPhaseCommit(bank.shop.url, participants)
    events: list[Event] = []
    async with running(Relay(bank.shop.url, transactions=[transfers], hook=events.append)):
        await wait_for(lambda: bank.moved() == [[1], [1]])
    await transfers.aclose()
    (first, *_) = [one for one in events if isinstance(one, TransactionsInDoubt)]
    assert list(first.unreachable) == ["away"]


def test_T_2_a_program_recovers_by_itself(bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank.left_behind(1, monkeypatch)
    (tmp_path / "bank_app.py").write_text(APPLICATION.format(shop=bank.shop.url, bank=bank.bank.url))
    command = [sys.executable, "-m", "postroom", "relay", "--app", "bank_app:transfers", "--database", bank.shop.url]
    with subprocess.Popen(command, cwd=tmp_path, env=plain_environment()) as program:
        try:
            wait_until(lambda: bank.moved() == [[1], [1]], lambda: "the bank has not committed")
        finally:
            program.terminate()
    assert program.returncode == 0


async def test_T_2_a_relay_refuses_what_it_cannot_recover(bank: Bank) -> None:
    given: Any = ["transfers"]
    with pytest.raises(InvalidSetting, match="transactions has a str: give TwoPhaseCommit objects"):
        Relay(bank.shop.url, transactions=given)
    with pytest.raises(InvalidSetting, match="same schema and table_prefix"):
        Relay(bank.shop.url, transactions=[bank.declared(table_prefix="other_")])
    other = TwoPhaseCommit(bank.shop.url, {"shop": bank.shop.url, "bank": bank.shop.url})
    with pytest.raises(InvalidSetting, match="participant 'bank' is given twice"):
        Relay(bank.shop.url, transactions=[bank.transfers, other])
    transfers = bank.declared()
    elsewhere = Relay(bank.bank.url, transactions=[transfers])
    with pytest.raises(InvalidSetting, match="the log of a TwoPhaseCommit is not in the relay's database"):
        await elsewhere.run()
    await transfers.aclose()


def test_T_1_the_only_participant_that_does_not_answer_its_commit_is_not_called_rolled_back(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = TwoPhaseCommit(bank.shop.url, {"shop": bank.shop.url})
    monkeypatch.setattr(PostgreSQLBranches, "commit", _silent)
    with closing(alone), pytest.raises(TransactionInDoubt, match="'shop', the only one, did not answer its COMMIT"):
        move_alone(alone)


def move_alone(alone: TwoPhaseCommit) -> None:
    with alone.begin() as transaction:
        transaction["shop"].execute(text("INSERT INTO moved VALUES (1)"))


def _silent(*_: object) -> Any:
    raise TimeoutError("no answer in time")
