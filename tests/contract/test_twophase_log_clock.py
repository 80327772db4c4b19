"""The log's clock is asked rarely, and may jump: the databases still agree, and at most one transaction is lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from postroom import TwoPhaseCommit
from postroom.errors import TransactionAborted
from postroom.store.sql.dialect import DIALECTS
from postroom.store.twophase.log import TwoPhaseLog
from postroom.twophase.log_clock import KEPT, LogClock
from tests.contract.twophase_ways import url_text
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.sql.steps import Steps
    from tests.contract.write_support import Databases

HOUR_MS = 3_600_000
KINDS = ("postgresql", "mariadb")


class Asked:
    """Counts how often the log's clock is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        clock = TwoPhaseLog.clock

        def counted(log: TwoPhaseLog) -> Steps[int]:
            self.times += 1
            return clock(log)

        monkeypatch.setattr(TwoPhaseLog, "clock", counted)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


class Transfers:
    """Between both, with the log at the first."""

    def __init__(self, holder: str, kind: str, databases: Databases) -> None:
        self._databases = databases
        self._runner = asyncio.Runner() if kind == "async" else None
        names = sorted(KINDS, key=lambda name: name != holder)
        self.commit = TwoPhaseCommit(names[0], {name: url_text(databases[name].url) for name in names}, timeout=20)

    def transfer(self) -> list[bool]:
        """Returns who has the rows."""
        rows = {name: business_row() for name in KINDS}
        try:
            if self._runner is None:
                with self.commit.begin() as transaction:
                    for name, (statement, _) in rows.items():
                        transaction[name].execute(text(statement))
            else:
                self._runner.run(self._atransfer(rows))
        except TransactionAborted:
            pass
        return [self._databases[name].has_business(row) for name, (_, row) in rows.items()]

    async def _atransfer(self, rows: dict[str, Any]) -> None:
        async with self.commit.begin() as transaction:
            for name, (statement, _) in rows.items():
                await transaction[name].execute(text(statement))

    def close(self) -> None:
        if self._runner is None:
            self.commit.close()
        else:
            self._runner.run(self.commit.aclose())
            self._runner.close()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=KINDS)
def transfers(request: pytest.FixtureRequest, kind: str, databases: Databases) -> Iterator[Transfers]:
    made = Transfers(request.param, kind, databases)
    yield made
    made.close()


def test_the_clock_is_asked_once_for_many_transactions(transfers: Transfers, asked: Asked) -> None:
    assert [transfers.transfer() for _ in range(4)] == [[True, True]] * 4
    assert asked.times == 1


@pytest.mark.parametrize(("by", "lost"), [(HOUR_MS, 1), (-HOUR_MS, 0)])
def test_T_1_a_log_whose_clock_jumps_costs_one_transaction_at_most(
    by: int, lost: int, transfers: Transfers, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover to a server whose clock is wrong."""
    assert transfers.transfer() == [True, True]
    for dialect in DIALECTS.values():
        monkeypatch.setattr(dialect, "now_ms", f"({dialect.now_ms}) + ({by})")
    assert [transfers.transfer() for _ in range(3)] == [[False, False]] * lost + [[True, True]] * (3 - lost)
    assert asked.times == 1 + lost


def test_the_clock_goes_on_until_it_must_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = LogClock(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert clock.believed() is None
    steps = clock.ask(_Log())  # type: ignore[arg-type]  # all that it is asked for
    with pytest.raises(StopIteration):
        next(steps)
    now += KEPT
    assert clock.believed() == 5000 + KEPT * 1000
    now += 1
    assert clock.believed() is None


class _Log:
    def clock(self) -> Steps[int]:
        yield from ()
        return 5000
