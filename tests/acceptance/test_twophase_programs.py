"""A program with two-phase commits, its recovery from the command line, and what its errors say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from postroom import Admin, Relay, TwoPhaseCommit, schema
from postroom.errors import SchemaMissing, TransactionInDoubt
from postroom.twophase import recovery as recovering
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os
import signal
from pathlib import Path

from postroom import TwoPhaseCommit


class Files:
    def prepare(self, id):
        Path("prepared").touch()

    def commit(self, id):
        Path("prepared").rename("committed")

    def abort(self, id):
        Path("prepared").unlink(missing_ok=True)


class Provider:
    def commit(self, id):
        Path("booked").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def abort(self, id):
        return not Path("booked").exists()


bookings = TwoPhaseCommit(log="sqlite:///shop.db", participants={"files": Files()}, last=Provider(), timeout=3)
if __name__ == "__main__":
    with bookings.begin():
        pass
"""


class Silent:
    """A last resource whose answer is always lost."""

    def commit(self, id: str) -> None:
        raise TimeoutError(f"no answer to {id}")


class Files:
    def prepare(self, id: str) -> None: ...

    def commit(self, id: str) -> None: ...

    def abort(self, id: str) -> None: ...


@pytest.mark.parametrize("start", [["bank.py"], ["-m", "bank"]])
def test_T_2_recovery_knows_the_last_resource_of_a_program_that_was_started_as_a_script(
    tmp_path: Path, start: list[str]
) -> None:
    """There its class is in `__main__`, and in the recovery's process in `bank`."""
    (tmp_path / "bank.py").write_text(PROGRAM)
    schema.create(f"sqlite:///{tmp_path}/shop.db")
    subprocess.run([sys.executable, *start], cwd=tmp_path, check=False, timeout=60)
    assert (tmp_path / "booked").exists()
    recover = [sys.executable, "-m", "postroom", "transactions", "recover", "--app", "bank:bookings"]
    for _ in range(60):  # until the deadline has passed
        told = subprocess.run(recover, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60).stdout
        if told.startswith("committed 1"):
            break
    assert (tmp_path / "committed").exists()


def test_a_last_resource_without_abort_sends_its_user_to_decide(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/shop.db"
    schema.create(log)
    bookings = TwoPhaseCommit(log=log, participants={"files": Files()}, last=Silent())
    with pytest.raises(TransactionInDoubt) as failure, bookings.begin() as transaction:
        pass
    assert f"`postroom transactions decide {transaction.id} commit` or `abort`" in str(failure.value)


def test_an_error_of_a_database_says_whose_it_is(tmp_path: Path) -> None:
    bookings = TwoPhaseCommit(log=f"sqlite:///{tmp_path}/shop.db", participants={"files": Files()}, last=Silent())
    with pytest.raises(SchemaMissing) as failure, bookings.begin():
        pass
    assert failure.value.__notes__ == ["from 'log' in a two-phase commit"]


class Away(Files):
    def commit(self, id: str) -> None:
        raise ConnectionError(f"cannot commit {id}")


async def test_T_2_an_operator_sees_for_whom_a_transaction_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering, "SETTLING", 0.0)
    monkeypatch.setattr("postroom.relay.transactions.EVERY", 0.05)
    log = f"sqlite:///{tmp_path}/shop.db"
    schema.create(log)
    transfers = TwoPhaseCommit(log=log, participants={"files": Files(), "archive": Away()}, timeout=1)
    async with transfers.begin() as transaction:
        pass
    assert transaction.unsettled == ("archive",)
    relay = asyncio.create_task(Relay(log, transactions=[transfers]).run())
    with Admin(log) as admin:

        def last_error() -> str | None:
            recovery = admin.transaction(transaction.id).recovery
            return None if recovery is None else recovery.error_message

        await wait_for(lambda: last_error() == "not confirmed by archive")
    relay.cancel()
    await asyncio.wait({relay})
    await transfers.aclose()
