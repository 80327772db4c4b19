"""Two-phase commits of users' own resources, and of one that cannot prepare, with their log in SQLite."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Admin, Relay, TwoPhaseCommit, schema
from postroom.admin import TransactionState
from postroom.errors import InvalidSetting, Refused, TransactionAborted, TransactionInDoubt, WrongMethod
from postroom.twophase import recovery as recovering
from tests.acceptance.waiting import PATIENCE, POLL, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Shop:
    """A shop in SQLite, with the log."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        schema.create(self.url)
        with closing(self.connect()) as connection:
            connection.execute("CREATE TABLE orders (id TEXT NOT NULL)")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def orders(self) -> list[str]:
        return [id_ for [id_] in self.read("SELECT id FROM orders")]

    def log(self) -> list[tuple[int, bool, str]]:
        """Of each transaction: its decision, whether it is settled, and its problem."""
        return self.read("SELECT decision, settled_at IS NOT NULL, problem FROM postroom_twophase")

    def read(self, sql: str) -> list[Any]:
        with closing(self.connect()) as connection:
            return connection.execute(sql).fetchall()


class Files:
    """A resource that cannot list what is prepared."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.before_prepare: Callable[[], object] = lambda: None
        self.before_commit: Callable[[], object] = lambda: None

    def prepare(self, id: str) -> object:
        answer = self.before_prepare()
        self.state.setdefault(id, "prepared")
        return answer

    def commit(self, id: str) -> None:
        self.before_commit()
        self.state[id] = "committed"

    def abort(self, id: str) -> None:
        self.state[id] = "aborted"

    @property
    def states(self) -> list[str]:
        return list(self.state.values())


class Payment:
    """A last resource."""

    def __init__(self) -> None:
        self.happened: set[str] = set()
        self.promised: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None

    def commit(self, id: str) -> None:
        if id in self.promised:
            raise Refused("ABORTED")
        self.happened.add(id)
        self.meanwhile()


class AbortablePayment(Payment):
    """One that can be told to abort."""

    def abort(self, id: str) -> bool:
        if id not in self.happened:
            self.promised.add(id)
        return id not in self.happened


class OtherPayment(AbortablePayment):
    """Another one, which knows nothing of the first."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(f"{tmp_path}/shop.db")


@pytest.fixture(autouse=True)
def recover_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery leaves the first seconds after a decision to its coordinator: here it is gone."""
    monkeypatch.setattr(recovering, "SETTLING", 0.0)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(POLL)


def transfers(shop: Shop, files: Files, **options: Any) -> TwoPhaseCommit:
    return TwoPhaseCommit(log="shop", participants={"shop": shop.connect, "files": files}, **options)


def payments(shop: Shop, files: Files, payment: Payment, **options: Any) -> TwoPhaseCommit:
    return TwoPhaseCommit(log=shop.connect, participants={"files": files}, last=payment, **options)


def order(transaction: Any) -> None:
    transaction["shop"].execute("INSERT INTO orders VALUES ('a')")


def test_T_1_sqlite_with_the_log_commits_with_a_resource_that_cannot_list(shop: Shop) -> None:
    files = Files()
    with transfers(shop, files).begin() as transaction:
        order(transaction)
    assert (shop.orders(), files.states) == (["a"], ["committed"])
    assert shop.log() == [(1, True, "")]


def test_T_1_a_resource_that_leaves_its_thread_has_not_prepared(shop: Shop) -> None:
    files = Files()
    files.before_prepare = lambda: sys.exit(1)
    with pytest.raises(TransactionAborted, match="SystemExit"), transfers(shop, files).begin() as transaction:
        order(transaction)
    assert (shop.orders(), files.states) == ([], ["aborted"])


def test_T_1_the_short_form_can_be_used_again_after_it_could_not_begin(shop: Shop) -> None:
    away = [True]

    def connect() -> sqlite3.Connection:
        if away[0]:
            raise ConnectionRefusedError
        return shop.connect()

    short = TwoPhaseCommit(log="shop", participants={"shop": connect, "files": Files()})
    with pytest.raises(ConnectionRefusedError), short:
        pass
    away.clear()
    away.append(False)
    with short as transaction:
        order(transaction)
    assert shop.orders() == ["a"]


def test_T_1_a_connection_that_comes_too_late_goes_back_to_where_it_came_from(shop: Shop) -> None:
    comes, closed = threading.Event(), threading.Event()

    class Late(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.set()

    def connect() -> sqlite3.Connection:
        comes.wait(PATIENCE)
        return sqlite3.connect(shop.path, check_same_thread=False, factory=Late)

    late = TwoPhaseCommit(log="shop", participants={"shop": connect, "files": Files()}, timeout=0.2)
    with pytest.raises(TransactionAborted, match="'shop' did not answer in time"), late.begin():
        pass
    comes.set()
    assert closed.wait(PATIENCE)


def test_T_1_code_can_tell_a_resource_which_branch_its_work_belongs_to(shop: Shop) -> None:
    files = Files()
    with transfers(shop, files).begin() as transaction:
        branch = transaction.branch_id("files")
        assert transaction.branch_id("shop") == ""
        with pytest.raises(InvalidSetting, match="no participant 'flies': use 'shop', 'files'"):
            transaction.branch_id("flies")
    assert files.state == {branch: "committed"}
    with pytest.raises(InvalidSetting, match="inside the `with` block"):
        transaction.branch_id("files")


def test_T_1_a_decision_in_sqlite_survives_a_power_cut_however_the_connection_is_set(shop: Shop) -> None:
    at_close: list[object] = []

    class Hasty(sqlite3.Connection):
        def close(self) -> None:
            at_close.extend(self.execute("PRAGMA synchronous").fetchone())
            super().close()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(shop.path, isolation_level=None, check_same_thread=False, factory=Hasty)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    with TwoPhaseCommit(log="shop", participants={"shop": connect, "files": Files()}).begin() as transaction:
        assert transaction["shop"].execute("PRAGMA synchronous").fetchone() == (2,)
    assert at_close[-1] == 1


def test_T_1_a_block_that_raises_leaves_nothing_behind(shop: Shop) -> None:
    files = Files()
    with pytest.raises(sqlite3.IntegrityError), transfers(shop, files).begin() as transaction:
        transaction["shop"].executemany("INSERT INTO orders VALUES (?)", [("a",), (None,)])
    assert (shop.orders(), files.states) == ([], ["aborted"])  # it may have been given work already
    assert shop.log() == [(0, True, "")]


def refuse() -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("answer", [refuse, lambda: False], ids=["raises", "returns False"])
def test_T_1_a_resource_that_refuses_has_nobody_commit(shop: Shop, answer: Callable[[], object]) -> None:
    files = Files()
    files.before_prepare = answer
    with (
        pytest.raises(TransactionAborted, match="participant 'files' cannot commit"),
        transfers(shop, files).begin() as transaction,
    ):
        order(transaction)
    assert (shop.orders(), files.states) == ([], ["aborted"])


def test_T_2_what_a_resource_has_not_confirmed_is_left_to_recovery(shop: Shop) -> None:
    files = Files()
    files.before_commit = refuse
    with transfers(shop, files).begin() as transaction:
        order(transaction)
    assert transaction.unsettled == ("files",)
    assert (shop.orders(), files.states, shop.log()) == (["a"], ["prepared"], [(1, False, "")])
    files.before_commit = lambda: None
    recovery = transfers(shop, files)
    until(lambda: recovery.recover().committed)
    assert (files.states, shop.log()) == (["committed"], [(1, True, "")])


def test_T_1_a_last_resource_does_its_work_when_all_are_ready(shop: Shop) -> None:
    files, payment = Files(), Payment()
    seen: list[str] = []
    payment.meanwhile = lambda: seen.extend(files.states)
    with payments(shop, files, payment).begin():
        pass
    assert seen == ["prepared"]
    assert (files.states, len(payment.happened), shop.log()) == (["committed"], 1, [(1, True, "")])


def test_T_1_a_last_resource_that_refuses_has_nobody_commit(shop: Shop) -> None:
    files, payment = Files(), Payment()
    transaction = payments(shop, files, payment).begin()
    files.before_prepare = lambda: payment.promised.add(transaction.id)
    with pytest.raises(TransactionAborted, match="the last resource refused: ABORTED"), transaction:
        pass
    assert (files.states, payment.happened, shop.log()) == (["aborted"], set(), [(0, True, "")])


def test_T_1_a_last_resource_without_an_answer_is_asked(shop: Shop) -> None:
    files, payment = Files(), AbortablePayment()
    payment.meanwhile = refuse
    with payments(shop, files, payment).begin():
        pass
    assert (files.states, shop.log()) == (["committed"], [(1, True, "")])


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, also where the signal was ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_T_2_ctrl_c_while_the_last_resource_works_rolls_nothing_back(shop: Shop, ctrl_c: Callable[[], None]) -> None:
    files, payment = Files(), AbortablePayment()
    payment.meanwhile = ctrl_c
    with pytest.raises(KeyboardInterrupt), payments(shop, files, payment, timeout=2).begin():
        pass
    assert (files.states, shop.log()) == (["prepared"], [(2, False, "")])
    recovery = payments(shop, files, payment)
    until(lambda: recovery.recover().committed)
    assert (files.states, shop.log()) == (["committed"], [(1, True, "")])


def in_doubt(shop: Shop, files: Files, payment: Payment) -> None:
    """Leave a transaction behind whose last resource has done its work, which its coordinator could not hear."""
    payment.meanwhile = refuse
    with pytest.raises(TransactionInDoubt), payments(shop, files, payment, timeout=2).begin():
        pass


def test_T_2_a_last_resource_that_cannot_abort_waits_for_an_operator(shop: Shop) -> None:
    files, payment = Files(), Payment()
    in_doubt(shop, files, payment)
    recovery = payments(shop, files, payment)
    until(lambda: recovery.recover().problems)
    [(decision, settled, problem)] = shop.log()
    assert (decision, settled, files.states) == (2, False, ["prepared"])
    assert problem.startswith("whether the last resource did its work is not known")


def test_T_2_recovery_never_asks_another_last_resource(shop: Shop) -> None:
    """It would say that nothing has happened, and what has would be lost."""
    files, payment = Files(), Payment()
    in_doubt(shop, files, payment)
    other = OtherPayment()
    recovery = payments(shop, files, other)
    until(lambda: recovery.recover().problems)
    assert (files.states, other.promised) == (["prepared"], set())


class AsyncFiles(Files):
    async def prepare(self, id: str) -> object:
        return super().prepare(id)


def test_an_async_resource_in_a_sync_transaction_is_refused(shop: Shop) -> None:
    with pytest.raises(WrongMethod, match=r"AsyncFiles\.prepare is async: use `async with`"):
        transfers(shop, AsyncFiles()).begin().__enter__()
    assert shop.log() == []


@pytest.mark.parametrize("nonsense", [None, "an id", [7]])
def test_T_2_a_resource_that_lists_nonsense_keeps_no_other_from_its_end(shop: Shop, nonsense: object) -> None:
    files, broken = Files(), Files()
    files.before_commit = refuse
    broken.in_doubt = lambda: nonsense  # type: ignore[attr-defined]
    both = {"shop": shop.connect, "files": files, "broken": broken}
    with TwoPhaseCommit(log="shop", participants=both).begin() as transaction:
        order(transaction)
    files.before_commit = lambda: None
    recovery = TwoPhaseCommit(log="shop", participants=both)
    until(lambda: recovery.recover().committed)
    assert recovery.recover().unreachable == {
        "broken": f"in_doubt() returned {type(nonsense).__name__}: return a list of ids"
    }
    assert (files.states, broken.states) == (["committed"], ["committed"])


def test_T_1_sqlite_and_a_last_resource_cannot_both_be_last(shop: Shop) -> None:
    both = TwoPhaseCommit(log="shop", participants={"shop": shop.connect, "files": Files()}, last=Payment())
    with pytest.raises(InvalidSetting, match="together with a last resource"):
        both.begin().__enter__()


def test_T_2_those_that_cannot_be_settled_do_not_hide_those_behind_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering, "MOST", 2)
    unknown, files = Files(), Files()
    unknown.before_commit = files.before_commit = refuse
    for _ in range(3):
        with TwoPhaseCommit(log="shop", participants={"shop": shop.connect, "unknown": unknown}).begin():
            pass
    for _ in range(3):
        with transfers(shop, files).begin():
            pass
    files.before_commit = lambda: None
    recovered = transfers(shop, files).recover()
    assert (len(recovered.committed), files.states) == (3, ["committed"] * 3)
    assert {problem.partition(":")[0] for problem in recovered.problems.values()} == {
        "participant 'unknown' is not known here"
    }
    assert unknown.states == ["prepared"] * 3


async def test_T_2_a_relay_finishes_all_that_it_can_however_much_it_cannot(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering, "MOST", 2)
    monkeypatch.setattr("postroom.relay.transactions.EVERY", 0.05)
    monkeypatch.setattr("postroom.relay.transactions.PAGES", 1)
    unknown, files = Files(), Files()
    unknown.before_commit = files.before_commit = refuse
    for _ in range(7):
        with TwoPhaseCommit(log=shop.url, participants={"shop": shop.url, "unknown": unknown}) as transaction:
            assert transaction.id
    with TwoPhaseCommit(log=shop.url, participants={"shop": shop.url, "files": files}):
        pass
    files.before_commit = lambda: None
    recovered = TwoPhaseCommit(log=shop.url, participants={"shop": shop.url, "files": files})
    relay = asyncio.create_task(Relay(shop.url, transactions=[recovered]).run())
    await wait_for(lambda: files.states == ["committed"])
    await wait_for(lambda: [problem.partition(" is ")[0] for *_, problem in shop.log()] == [*PROBLEMS, ""])
    relay.cancel()
    await asyncio.wait({relay})
    await recovered.aclose()
    assert unknown.states == ["prepared"] * 7


PROBLEMS = ["participant 'unknown'"] * 7


async def test_T_2_a_relay_ends_the_recovery_of_what_an_operator_had_forgotten(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.relay.transactions.EVERY", 0.05)
    unknown = Files()
    unknown.before_commit = refuse
    with TwoPhaseCommit(log=shop.url, participants={"shop": shop.url, "unknown": unknown}, timeout=1) as transaction:
        assert transaction.id
    recovered = TwoPhaseCommit(log=shop.url, participants={"shop": shop.url, "files": Files()})
    relay = asyncio.create_task(Relay(shop.url, transactions=[recovered]).run())
    deliveries = "SELECT 1 FROM postroom_outbox_delivery"
    with Admin(shop.url) as admin:
        await wait_for(lambda: "is not known here" in (admin.transaction(transaction.id).explanation))
        assert shop.read(deliveries)
        await wait_for(lambda: admin.transaction(transaction.id).transaction.past_deadline)
        admin.forget_transaction(transaction.id, actor="ada")
        await wait_for(lambda: not shop.read(deliveries))
        assert admin.transaction(transaction.id).transaction.state is TransactionState.FORGOTTEN
    relay.cancel()
    await asyncio.wait({relay})
    await recovered.aclose()
