"""Recovery beside users' own resources that hang, and by relays of what sync code has left."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from postroom import Admin, Relay, TwoPhaseCommit, schema
from postroom.admin import TransactionState
from postroom.errors import TransactionInDoubt
from postroom.twophase import recovery as recovering
from tests.acceptance.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Files:
    """A resource whose commits fail until they are `let`."""

    def __init__(self) -> None:
        self.let: Callable[[], object] = self._refuse
        self.committed: list[str] = []

    def _refuse(self) -> None:
        raise OSError("no answer")

    def prepare(self, id: str) -> None: ...

    def abort(self, id: str) -> None: ...

    def commit(self, id: str) -> None:
        self.let()
        self.committed.append(id)


class Payment:
    """A last resource whose answers are lost, and which ends its transactions only when it is asked for all at once."""

    def __init__(self, together: int) -> None:
        self._all = threading.Barrier(together)
        self.is_reached = False

    def commit(self, id: str) -> None:
        raise OSError(f"no answer to {id}")

    def abort(self, id: str) -> bool:
        if not self.is_reached:
            raise OSError(f"no answer to {id}")
        self._all.wait(PATIENCE)
        return True


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with the log; recovery leaves nothing to coordinators, which are gone here."""
    monkeypatch.setattr(recovering, "SETTLING", 0.0)
    schema.create(f"sqlite:///{tmp_path}/shop.db")
    return f"sqlite:///{tmp_path}/shop.db"


def leave_behind(transfers: TwoPhaseCommit) -> str:
    """A transaction that is decided, and that its resource did not confirm."""
    with transfers.begin() as transaction:
        pass
    assert transaction.unsettled
    return transaction.id


async def test_T_2_last_resources_are_asked_all_at_once(url: str) -> None:
    payment = Payment(3)
    payments = TwoPhaseCommit(log=url, participants={"files": Files()}, last=payment, timeout=1.5)
    for _ in range(3):
        with pytest.raises(TransactionInDoubt), payments.begin():
            pass
    payment.is_reached = True
    with Admin(url) as admin:
        await wait_for(lambda: all(one.past_deadline for one in admin.transactions()))
    assert len((await payments.arecover()).rolled_back) == 3
    await payments.aclose()


def test_T_2_a_resource_that_hangs_delays_no_record_of_others(url: str) -> None:
    files, unknown = Files(), Files()
    mine = {"shop": url, "files": files}
    hanging = leave_behind(TwoPhaseCommit(log="shop", participants=mine))
    other = leave_behind(TwoPhaseCommit(log="shop", participants={"shop": url, "unknown": unknown}))
    seen: list[TransactionState] = []

    def look() -> None:
        with Admin(url) as admin:
            seen.append(admin.transaction(other).transaction.state)

    files.let = look
    recovery = TwoPhaseCommit(log="shop", participants=mine)
    recovered = recovery.recover()
    recovery.close()
    assert recovered.committed == (hanging,)
    assert seen == [TransactionState.STUCK]  # what there is to say about it was on record already


def from_a_sessionmaker(engine: Any) -> dict[str, Any]:
    return {"log": engine, "participants": {"shop": sessionmaker(engine)}}


def from_an_engine(engine: Any) -> dict[str, Any]:
    return {"log": "shop", "participants": {"shop": engine}}


def from_a_function(engine: Any) -> dict[str, Any]:
    connect = partial(sqlite3.connect, engine.url.database, check_same_thread=False)
    return {"log": "shop", "participants": {"shop": connect}}


@pytest.mark.parametrize("given", [from_a_sessionmaker, from_an_engine, from_a_function])
def test_T_2_a_relay_that_runs_until_empty_recovers_what_sync_code_has_left(
    url: str, given: Callable[[Any], dict[str, Any]]
) -> None:
    engine = create_engine(url)
    files = Files()
    options = given(engine)
    options["participants"]["files"] = files
    transfers = TwoPhaseCommit(**options)
    assert transfers.holder == "shop"
    left = leave_behind(transfers)
    files.let = lambda: None
    asyncio.run(Relay(url, transactions=[transfers]).run_until_empty())
    with Admin(url) as admin:
        assert admin.transaction(left).transaction.state is TransactionState.COMMITTED
    assert len(files.committed) == 1
    engine.dispose()
