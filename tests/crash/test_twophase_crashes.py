"""Two-phase commits whose coordinators, recoveries and servers die at the worst places: all participants agree."""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import DBAPIError

from postroom.errors import TransactionAborted, TransactionInDoubt
from postroom.store.sql.operations import chunks
from tests.contract.schema_support import engine_for, execute, init, names_for
from tests.crash import twophase_bank
from tests.crash.processes import Worker, wait_until
from tests.crash.twophase_bank import ACCOUNTS, GIVE, SUM, TAKE, Bank, Fate, Till, Vault
from tests.crash.wire import Wire
from tests.services.databases import SERVERS, need
from tests.services.mariadb import MariaDB
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from postroom import TwoPhaseCommit
    from tests.conftest import FreshDatabase
    from tests.crash.processes import Processes
    from tests.services.service import DatabaseService

SETUPS = {
    "the log at a participant": ("shop", {"shop": "postgresql", "bank": "postgresql"}),
    "the log at a participant, async": ("shop", {"shop": "postgresql", "bank": "mariadb"}),
    "the log apart": ("postgresql", {"shop": "postgresql", "bank": "mariadb"}),
    "the log at MariaDB": ("shop", {"shop": "mariadb", "bank": "postgresql"}),
    "the log in SQLite": ("shop", {"shop": "sqlite", "bank": "mariadb"}),
    "a resource that cannot list": ("shop", {"shop": "postgresql", "vault": ""}),
    "a last resource": ("shop", {"shop": "postgresql", "bank": "postgresql"}),
}
AT_ONCE = 6
ATTEMPTS = 5
TRANSFERS = 400
SEED = 20261116


class Books:
    """A bank as a test sees it."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self._two_phase_commit = bank.two_phase_commit()

    def close(self) -> None:
        """Leave nothing prepared, even if the test has failed: it would hold locks, and its database."""
        self._two_phase_commit.close()
        for url in filter(None, self.bank.participants.values()):
            if not url.startswith("sqlite"):
                roll_back_all(url)

    def open_accounts(self, number: int) -> None:
        for url in {self.bank.log, *self.bank.participants.values()} - {""}:
            with engine_for(url) as engine:
                init(engine, names_for(url))
        for url in filter(None, self.bank.participants.values()):
            with engine_for(url) as engine:
                execute(engine, "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
                rows = ", ".join(f"({one}, {SUM})" for one in range(number))
                execute(engine, f"INSERT INTO account (id, balance) VALUES {rows}")

    def moved(self, id: int) -> list[bool]:
        """Whether each participant has its part of the transfer on this account."""
        found = [self.balance(url, id) != SUM for url in self.bank.participants.values() if url]
        if "" in self.bank.participants.values():
            found.append(id in Vault(self.bank.directory).accounts())
        if self.bank.has_last:
            found.append(id in Till(self.bank.directory).accounts())
        return found

    def balance(self, url: str, id: int) -> int:
        with engine_for(url) as engine, engine.connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT balance FROM account WHERE id = {id}").scalar_one())

    def total(self) -> int:
        total = 0
        for url in self.bank.participants.values():
            with engine_for(url) as engine, engine.connect() as connection:
                total += int(connection.exec_driver_sql("SELECT sum(balance) FROM account").scalar_one())
        return total

    def in_doubt(self) -> int:
        """Branches that are prepared, whoever asks, and transactions that the log has not settled."""
        found = len(Vault(self.bank.directory).accounts("prepared"))
        for url in filter(None, self.bank.participants.values()):
            with engine_for(url) as engine, engine.connect() as connection:
                if engine.dialect.name == "postgresql":
                    prepared = "SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()"
                    found += len(connection.exec_driver_sql(prepared).all())
                elif engine.dialect.name in {"mysql", "mariadb"}:
                    found += len(connection.exec_driver_sql("XA RECOVER").all())
        with engine_for(self.bank.log) as engine, engine.connect() as connection:
            table = names_for(self.bank.log).table("twophase")
            found += len(connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE settled_at IS NULL").all())
        return found

    def recover(self) -> None:
        """Recover until nothing is in doubt."""

        def settled() -> bool:
            recovered = self._two_phase_commit.recover()
            assert not recovered.problems, recovered
            return not self.in_doubt()

        wait_until(settled, "all is settled")


def roll_back_all(url: str) -> None:
    with engine_for(url, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            statements = [f"ROLLBACK PREPARED '{gid}'" for [gid] in connection.exec_driver_sql(prepared)]
        else:
            listed = connection.exec_driver_sql("XA RECOVER FORMAT='SQL'").all()
            statements = [f"XA ROLLBACK {xid}" for *_, xid in listed]
        for statement in statements:
            with suppress(DBAPIError):  # others' branches on the same server
                connection.exec_driver_sql(statement)


@pytest.fixture
def books(fresh_database: FreshDatabase, tmp_path: Path) -> Iterator[Callable[..., Books]]:
    with ExitStack() as stack:

        def make(setup: str) -> Books:
            where, kinds = SETUPS[setup]
            participants = {name: fresh_database(kind) if kind else "" for name, kind in kinds.items()}
            log = participants.get(where) or fresh_database(where)
            bank = Bank(log, participants, tmp_path, "last" in setup, "async" in setup)
            return stack.enter_context(closing(Books(bank)))

        yield make


def statements(books: Books, processes: Processes) -> int:
    """How many statements a transfer runs, if it is not the first, which also makes the log's scope."""
    for name, account in (("first", 0), ("second", 59)):
        processes.start(name, twophase_bank.transfer, books.bank, account, Fate()).join()
        assert all(books.moved(account))
    return int((books.bank.directory / "second.met").read_text())


def killed_everywhere(books: Books, processes: Processes, *, also_after: bool = False) -> int:
    """Have a transfer die before each of its statements, or also after, each on an account of its own."""
    books.open_accounts(60)
    met = statements(books, processes)
    fates = [Fate(nth, after) for nth in range(met) for after in ((False, True) if also_after else (False,))]
    numbers = list(range(1, len(fates) + 1))
    for chunk in chunks(numbers, AT_ONCE):
        meet(books, processes, {number: fates[number - 1] for number in chunk}, Worker.killed)
    return len(fates)


def meet(
    books: Books, processes: Processes, fates: Mapping[int, Fate], has_met: Callable[[Worker], bool]
) -> list[Worker]:
    """Start a transfer on each account, which meets its fate; again if it ran out of time before, on a slow machine."""
    there: list[Worker] = []
    for attempt in range(ATTEMPTS):
        started = {
            number: processes.start(f"{number}-{attempt}", twophase_bank.transfer, books.bank, number, fate)
            for number, fate in fates.items()
        }
        for worker in started.values():
            wait_until(lambda: worker.ended() or has_met(worker), "it meets its fate")  # noqa: B023 - called at once
        there += [worker for worker in started.values() if has_met(worker)]
        fates = {number: fates[number] for number, worker in started.items() if not has_met(worker)}
        if not fates:
            return there
    pytest.fail(f"these met no fate: {fates}")


@pytest.mark.parametrize("setup", SETUPS)
def test_T_2_a_coordinator_killed_anywhere_leaves_all_or_nothing(
    setup: str, books: Callable[..., Books], processes: Processes
) -> None:
    these = books(setup)
    kills = killed_everywhere(these, processes, also_after="async" not in setup and setup.startswith("the log at a"))
    assert these.in_doubt(), "nothing was left to recover"
    these.recover()
    outcomes = [these.moved(one) for one in range(1, kills + 1)]
    assert all(len(set(one)) == 1 for one in outcomes), outcomes
    assert {one[0] for one in outcomes} == {True, False}, "all ended alike"


def test_T_2_recoveries_may_die_and_several_may_run_at_once(books: Callable[..., Books], processes: Processes) -> None:
    these = books("the log apart")
    kills = killed_everywhere(these, processes)
    done = these.bank.directory / "done"
    others = [processes.start(f"recovery-{n}", twophase_bank.recover, these.bank, Fate(), done) for n in range(2)]
    for nth in range(0, 40, 4):
        fate = Fate(nth, after=bool(nth % 8))
        victim = processes.start(f"dying-{nth}", twophase_bank.recover, these.bank, fate, done)
        wait_until(victim.ended, "it dies")
        assert victim.killed()
    these.recover()
    done.touch()
    for one in others:
        one.join()
    outcomes = [these.moved(one) for one in range(1, kills + 1)]
    assert all(len(set(one)) == 1 for one in outcomes), outcomes


def test_T_2_a_coordinator_that_was_stopped_past_its_deadline_cannot_break_what_recovery_decided(
    books: Callable[..., Books], processes: Processes
) -> None:
    these = books("the log apart")
    these.open_accounts(60)
    met = statements(these, processes)
    fates = {nth + 1: Fate(nth, after=False, signal=signal.SIGSTOP) for nth in range(met)}
    stopped = meet(these, processes, fates, Worker.stopped)
    these.recover()
    for worker in stopped:
        worker.signal(signal.SIGCONT)
    for worker in stopped:
        wait_until(worker.ended, "it ends")
    these.recover()
    outcomes = [these.moved(one) for one in range(1, len(fates) + 1)]
    assert all(len(set(one)) == 1 for one in outcomes), outcomes


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("postgresql", b"PREPARE TRANSACTION"),
        ("postgresql", b"COMMIT PREPARED"),
        ("mariadb", b"XA PREPARE"),
        ("mariadb", b"XA COMMIT"),
    ],
)
def test_T_2_the_answer_to_a_participants_command_is_lost(
    kind: str, request_: bytes, fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    shop, far = fresh_database("postgresql"), fresh_database(kind)
    with closing(Wire(far)) as wire, closing(Books(Bank(shop, {"shop": shop, "bank": far}, tmp_path))) as these:
        these.open_accounts(2)
        cut = Bank(shop, {"shop": shop, "bank": wire.url}, tmp_path).two_phase_commit()
        wire.lose_answer_to(request_)
        with closing(cut):
            if b"PREPARE" in request_ and b"COMMIT" not in request_:
                with pytest.raises(TransactionAborted, match="participant 'bank' cannot commit"):
                    move(cut, 1)
            else:
                move(cut, 1, unsettled=("bank",))
        assert wire.lost == 1
        these.recover()
        assert these.moved(1) in ([True, True], [False, False])
        assert these.moved(1)[0] == (b"COMMIT" in request_)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_T_2_the_answer_to_the_decision_is_lost(kind: str, fresh_database: FreshDatabase, tmp_path: Path) -> None:
    shop, bank = fresh_database(kind), fresh_database("postgresql")
    with closing(Wire(shop)) as wire, closing(Books(Bank(shop, {"shop": shop, "bank": bank}, tmp_path))) as these:
        these.open_accounts(3)
        cut = Bank(wire.url, {"shop": wire.url, "bank": bank}, tmp_path).two_phase_commit()
        with closing(cut):
            move(cut, 0)
            wire.lose_answer_to(b"ONE PHASE" if kind == "mariadb" else b"COMMIT")
            move(cut, 1)
            assert wire.lost == 1
            assert these.moved(1) == [True, True]
            wire.lose_answer_to(b"deadline_ms) SELECT")  # the decision itself
            with pytest.raises((TransactionAborted, TransactionInDoubt)):
                move(cut, 2)
        these.recover()
        assert these.moved(2) == [False, False]


def move(two_phase_commit: TwoPhaseCommit, account: int, unsettled: tuple[str, ...] = ()) -> None:
    with two_phase_commit.begin() as transaction:
        transaction["shop"].execute(TAKE, {"id": account})
        transaction["bank"].execute(GIVE, {"id": account})
    assert transaction.unsettled == unsettled


@pytest.fixture
def own_server() -> Iterator[Callable[[str], DatabaseService]]:
    with ExitStack() as stack:

        def start(kind: str) -> DatabaseService:
            need(SERVERS[kind])
            server = {"postgresql": PostgreSQL, "mariadb": MariaDB}[kind](durable=True)
            stack.enter_context(closing(server))
            server.start()
            server.create_database("bank")
            return server

        yield start


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_T_2_a_participant_killed_between_prepare_and_commit_commits_when_it_is_back(
    kind: str,
    fresh_database: FreshDatabase,
    own_server: Callable[[str], DatabaseService],
    tmp_path: Path,
    processes: Processes,
) -> None:
    server = own_server(kind)
    shop, bank = fresh_database("postgresql"), server.url("bank")
    with closing(Books(Bank(shop, {"shop": shop, "bank": bank}, tmp_path))) as these:
        these.open_accounts(60)
        met = statements(these, processes)
        fates = {nth + 1: Fate(nth, after=False, signal=signal.SIGSTOP) for nth in range(met)}
        stopped = meet(these, processes, fates, Worker.stopped)
        server.stop(kill=True)
        for worker in stopped:
            worker.signal(signal.SIGCONT)
        for worker in stopped:
            wait_until(worker.ended, "it ends")
        server.start()
        these.recover()
        outcomes = [these.moved(nth + 1) for nth in range(met)]
        assert all(len(set(one)) == 1 for one in outcomes), outcomes
        assert {one[0] for one in outcomes} == {True, False}, "all ended alike"


def test_T_2_money_is_conserved_whatever_happens_to_hundreds_of_transfers(
    books: Callable[..., Books], processes: Processes
) -> None:
    chance = random.Random(SEED)  # noqa: S311 - for repeatable tests
    these = books("the log at a participant, async")
    these.open_accounts(ACCOUNTS)
    done = these.bank.directory / "done"
    recovery = processes.start("recovery", twophase_bank.recover, these.bank, Fate(), done)
    tellers = [
        processes.start(f"teller-{number}", twophase_bank.tell, these.bank, chance.randrange(2**32), TRANSFERS // 4)
        for number in range(4)
    ]

    def said() -> str:
        return "".join(one.read_text() for one in sorted(these.bank.directory.glob("teller-*.said")))

    for teller in tellers:
        wait_until(teller.ended, "it has made its transfers", said)
        teller.check()
    done.touch()
    recovery.join()
    these.recover()
    assert these.total() == 2 * ACCOUNTS * SUM
    committed = said().count("c")
    assert len(said()) >= TRANSFERS
    assert committed > TRANSFERS // 2, "too few to mean anything"
    shop = next(iter(these.bank.participants.values()))
    with engine_for(shop) as engine, engine.connect() as connection:
        left = int(connection.exec_driver_sql("SELECT sum(balance) FROM account").scalar_one())
    assert committed <= ACCOUNTS * SUM - left, "what was said to be committed is"


def test_T_2_a_branch_that_is_prepared_after_recovery_has_rolled_back_is_rolled_back_too(
    fresh_database: FreshDatabase, tmp_path: Path
) -> None:
    shop, bank = fresh_database("postgresql"), fresh_database("postgresql")
    with closing(Books(Bank(shop, {"shop": shop, "bank": bank}, tmp_path))) as these:
        these.open_accounts(2)
        with closing(these.bank.two_phase_commit(timeout=3)) as short:
            transaction = short.begin()
            with suppress(RuntimeError), transaction:
                transaction["bank"].execute(GIVE, {"id": 1})
                raise RuntimeError("rolled back")
        these.recover()
        scope = f"SELECT scope FROM {names_for(shop).table('twophase_scope')}"
        with engine_for(shop) as engine, engine.connect() as connection:
            gid = f"pr1:{connection.exec_driver_sql(scope).scalar_one()}:{transaction.id}:bank"
        with engine_for(bank, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
            for statement in ("BEGIN", "UPDATE account SET balance = balance + 1 WHERE id = 1"):
                connection.exec_driver_sql(statement)
            connection.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
        assert these.in_doubt() == 1
        these.recover()
        assert these.moved(1) == [False, False]
