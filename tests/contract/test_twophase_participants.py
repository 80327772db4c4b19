"""Two-phase commits between PostgreSQL and MariaDB, with a participant given in every way."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import aiosqlite
import pytest
from sqlalchemy import text

from postroom import Outbox, TwoPhaseCommit
from postroom.errors import InvalidSetting, PostroomError, TransactionAborted
from postroom.store.twophase.branches import Ended
from tests.contract.twophase_ways import BY_NAME, WAYS, Participant, Way, by_text, participant, url_text
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.write_support import Databases
    from tests.services.pgbouncer import PgBouncer

OTHER = {"postgresql": "mariadb", "mariadb": "postgresql"}
OUTBOX = Outbox(notify=True)


class Failed(Exception):
    """Raised by the code inside."""


class Pair:
    """A bank that is given in some way, and a shop that is given as a URL."""

    def __init__(self, bank: Participant, databases: Databases, log: str) -> None:
        self.bank = bank
        self.databases = {"bank": databases[bank.way.database], "shop": databases[OTHER[bank.way.database]]}
        shop = url_text(self.databases["shop"].url)
        self.transfers = TwoPhaseCommit(log=log, participants={"bank": bank.given, "shop": shop}, timeout=20)

    def transfer(self, *, fails: bool = False, statement: str = "") -> tuple[list[str], Any]:
        """Write to both, and add a message at the bank: the rows in both, and the message."""
        if self.bank.way.asynchronous:
            return self.bank.wait(self._atransfer(fails=fails, statement=statement))  # type: ignore[no-any-return]
        with self.transfers.begin() as transaction:
            (one, row), (other, shop_row) = business_row(), business_row()
            self.bank.way.write(transaction["bank"], one)
            by_text(transaction["shop"], other)
            message = OUTBOX.add(transaction["bank"], "orders", 7)
            if statement:
                self.bank.way.write(transaction["bank"], statement)
            self._end([row, shop_row], message, fails=fails)
        assert transaction.unsettled == ()
        return [row, shop_row], message

    async def _atransfer(self, *, fails: bool, statement: str) -> tuple[list[str], Any]:
        async with self.transfers.begin() as transaction:
            (one, row), (other, shop_row) = business_row(), business_row()
            await self.bank.way.write(transaction["bank"], one)
            await by_text(transaction["shop"], other)
            message = await OUTBOX.aadd(transaction["bank"], "orders", 7)
            if statement:
                await self.bank.way.write(transaction["bank"], statement)
            self._end([row, shop_row], message, fails=fails)
        assert transaction.unsettled == ()
        return [row, shop_row], message

    def _end(self, rows: list[str], message: Any, *, fails: bool) -> None:
        self.last = rows, message
        if fails:
            raise Failed

    def written(self, rows: list[str], message: Any) -> list[bool]:
        bank, shop = self.databases["bank"], self.databases["shop"]
        return [bank.has_business(rows[0]), shop.has_business(rows[1]), bank.stored([message]) == 1]

    def close(self) -> None:
        self.bank.wait(self.transfers.aclose()) if self.bank.way.asynchronous else self.transfers.close()


@contextmanager
def pair(way: Way, databases: Databases, log: str = "shop") -> Iterator[Pair]:
    with participant(way, databases) as (bank, _):
        made = Pair(bank, databases, log)
        try:
            yield made
        finally:
            made.close()
    for database in (databases["postgresql"], databases["mariadb"]):
        assert prepared(database) == []


def prepared(database: Database) -> list[Any]:
    """All branches that are prepared in a database, whoever has them."""
    if database.store.names.dialect == "postgresql":
        return list(database.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"))
    return list(database.rows("XA RECOVER"))


@pytest.mark.parametrize("log", ["shop", "bank"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_both_commit_or_none(way: Way, log: str, databases: Databases) -> None:
    with pair(way, databases, log) as transfers:
        for _ in range(3):
            assert transfers.written(*transfers.transfer()) == [True, True, True]
            with pytest.raises(Failed):
                transfers.transfer(fails=True)
            assert transfers.written(*transfers.last) == [False, False, False]


ENDINGS = [
    *product(["function, psycopg", "function, asyncpg"], ["ROLLBACK", "ROLLBACK AND CHAIN"]),
    # SQLAlchemy and Django refuse those, but cannot see these.
    *product(["Engine, psycopg", "Django, postgresql"], ["SELECT 1; ROLLBACK", "SELECT 1; ROLLBACK AND CHAIN"]),
]


@pytest.mark.parametrize("log", ["shop", "bank"])
@pytest.mark.parametrize(("name", "ending"), ENDINGS)
def test_nobody_commits_when_the_code_has_rolled_one_back(
    name: str, log: str, ending: str, databases: Databases
) -> None:
    with pair(BY_NAME[name], databases, log) as transfers:
        with pytest.raises(TransactionAborted) as aborted:
            transfers.transfer(statement=ending)
        assert isinstance(aborted.value.__cause__, Ended)
        assert aborted.value.participant == "bank"
        assert transfers.written(*transfers.last) == [False, False, False]


def test_many_threads_share_the_connections_of_urls(databases: Databases) -> None:
    """Each makes its first transaction when there are no engines yet."""
    with pair(BY_NAME["URL, postgresql"], databases) as transfers:
        rows: list[Any] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                rows.extend(transfers.transfer() for _ in range(3))
            except Exception as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert all(transfers.written(*one) == [True, True, True] for one in rows)


def test_each_event_loop_has_its_own_connections(databases: Databases) -> None:
    """One that is declared in a module serves the event loops of all threads."""
    urls = {kind: url_text(databases[kind].url) for kind in OTHER}
    transfers = TwoPhaseCommit(log="bank", participants={"bank": urls["postgresql"], "shop": urls["mariadb"]})

    async def work() -> list[str]:
        async with transfers.begin() as transaction:
            (one, row), (other, shop_row) = business_row(), business_row()
            await by_text(transaction["bank"], one)
            await by_text(transaction["shop"], other)
        return [row, shop_row]

    with asyncio.Runner() as one, asyncio.Runner() as other:
        written = [runner.run(work()) for runner in (one, other, one, other)]
        for runner in (one, other):
            runner.run(transfers.aclose())
        written.append(one.run(work()))  # it can still be used
        one.run(transfers.aclose())
    for bank_row, shop_row in written:
        assert databases["postgresql"].has_business(bank_row)
        assert databases["mariadb"].has_business(shop_row)


ALL = ("sqlite", "postgresql", "mariadb")


@pytest.mark.parametrize("given", ["URL", "function"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sqlite_holds_the_log_of_a_transfer(given: str, kind: str, databases: Databases) -> None:
    participants: dict[str, Any] = {name: url_text(databases[name].url) for name in ALL}
    path = str(databases["sqlite"].url.database)
    if given == "function":
        connect = partial(sqlite3.connect, check_same_thread=False) if kind == "sync" else aiosqlite.connect
        participants["sqlite"] = partial(connect, path)
    transfers = TwoPhaseCommit(log="sqlite", participants=participants)

    def statements() -> dict[str, tuple[str, str]]:
        return {name: business_row() for name in ALL}

    def work(*, fails: bool) -> list[bool]:
        rows = statements()
        with suppress(Failed), transfers.begin() as transaction:
            for name, (statement, _) in rows.items():
                is_driver = name == "sqlite" and given == "function"
                transaction[name].execute(statement if is_driver else text(statement))
            if fails:
                raise Failed
        return [databases[name].has_business(row) for name, (_, row) in rows.items()]

    async def awork(*, fails: bool) -> list[bool]:
        rows = statements()
        with suppress(Failed):
            async with transfers.begin() as transaction:
                for name, (statement, _) in rows.items():
                    is_driver = name == "sqlite" and given == "function"
                    await transaction[name].execute(statement if is_driver else text(statement))
                if fails:
                    raise Failed
        return [databases[name].has_business(row) for name, (_, row) in rows.items()]

    async def all_of_it() -> tuple[list[bool], list[bool]]:
        results = await awork(fails=False), await awork(fails=True)
        await transfers.aclose()
        return results

    results = asyncio.run(all_of_it()) if kind == "async" else (work(fails=False), work(fails=True))
    transfers.close()
    assert results == ([True, True, True], [False, False, False])


def test_a_connection_of_sqlite_for_one_thread_is_refused(databases: Databases) -> None:
    participants = {"shop": partial(sqlite3.connect, databases["sqlite"].url.database)}
    with pytest.raises(InvalidSetting, match="check_same_thread=False"), TwoPhaseCommit("shop", participants):
        pass


def test_a_database_that_cannot_prepare_is_refused_at_the_first_transaction(databases: Databases) -> None:
    transfers = TwoPhaseCommit(
        log=url_text(databases["postgresql"].url),
        participants={"shop": url_text(databases["sqlite"].url), "bank": url_text(databases["mariadb"].url)},
    )
    with pytest.raises(PostroomError, match="'shop' cannot prepare"), transfers.begin():
        pass
    transfers.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_transfer_goes_through_a_pooler(kind: str, databases: Databases, pgbouncer: PgBouncer) -> None:
    """PgBouncer in transaction mode: each transaction, and each command for a prepared one, in any session."""
    bank = pgbouncer.url(str(databases["postgresql"].url.database))
    participants = {"bank": bank, "mint": url_text(databases["mariadb"].url)}
    two = [TwoPhaseCommit("mint", participants) for _ in range(2)]  # whose statements have the same names
    rows = [(business_row(), business_row()) for _ in range(16)]
    same = "SELECT 1"  # prepared by drivers that see it often

    async def work() -> None:
        for number, ((one, _), (other, _)) in enumerate(rows):
            async with two[number % 2].begin() as transaction:
                for statement in (same, one):
                    await by_text(transaction["bank"], statement)
                await by_text(transaction["mint"], other)
        for transfers in two:
            await transfers.aclose()

    if kind == "async":
        asyncio.run(work())
    else:
        for number, ((one, _), (other, _)) in enumerate(rows):
            with two[number % 2].begin() as transaction:
                for statement in (same, one):
                    by_text(transaction["bank"], statement)
                by_text(transaction["mint"], other)
        for transfers in two:
            transfers.close()
    for (_, bank_row), (_, mint_row) in rows:
        assert databases["postgresql"].has_business(bank_row)
        assert databases["mariadb"].has_business(mint_row)
