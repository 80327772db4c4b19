from __future__ import annotations

import pytest

from postroom.rules.checks import database
from postroom.rules.checks.database import Holder
from postroom.rules.checks.findings import Verdict

OK, WARN, FAIL, SKIP = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIP


def test_reaching_it() -> None:
    assert database.reachable(0.01, "SQLite 3").evidence == "SQLite 3 answered within 10 ms"
    assert database.unreachable("refused").verdict is FAIL
    assert "postroom init" in database.no_file("there is no file").remedy
    assert "SETTINGS_EXTRAS" in database.no_driver("psycopg is missing").remedy
    assert database.writable(None).verdict is OK
    assert database.writable("it is a standby").verdict is FAIL


@pytest.mark.parametrize(("skew", "verdict"), [(0.1, OK), (-4.9, OK), (6, WARN), (-6, WARN)])
def test_clocks(skew: float, verdict: Verdict) -> None:
    assert database.clock(skew).verdict is verdict


@pytest.mark.parametrize(("used", "verdict"), [(10, OK), (80, WARN), (95, FAIL)])
def test_connections(used: int, verdict: Verdict) -> None:
    assert database.connections(used, 100).verdict is verdict


def test_snapshots() -> None:
    young, old = Holder("session", "7", 10, "a"), Holder("session", "8", 400, "b")
    assert database.snapshots([]).verdict is OK
    assert database.snapshots([young]).verdict is OK
    assert (database.snapshots([young, old]).verdict, database.snapshots([young, old]).remedy) == (WARN, "b")
    slot = database.snapshots([Holder("slot", "forgotten", None, "c")])
    assert (slot.verdict, "an unknown time" in slot.evidence) == (WARN, True)
    assert database.snapshots([Holder("prepared transaction", "x", 4000, "d"), old]).verdict is FAIL


@pytest.mark.parametrize(
    ("dead", "live", "last", "is_on", "verdict"),
    [
        (0, 0, None, True, OK),
        (100_000, 10, 5, True, OK),
        (100_001, 10, 5, True, WARN),
        (300_000, 400_000, 5, True, OK),
        (0, 0, 5, False, FAIL),
    ],
)
def test_vacuum(dead: int, live: int, last: float | None, is_on: bool, verdict: Verdict) -> None:  # noqa: FBT001 - an example
    assert database.vacuum(dead, live, last, is_on=is_on).verdict is verdict


def test_purge() -> None:
    assert database.purge(10).verdict is OK
    assert database.purge(2_000_000).verdict is WARN


@pytest.mark.parametrize(
    ("fsync", "pages", "commit", "verdict"),
    [(True, True, "on", OK), (False, True, "on", FAIL), (True, False, "on", WARN), (True, True, "off", WARN)],
)
def test_postgresql_keeps_what_it_commits(fsync: bool, pages: bool, commit: str, verdict: Verdict) -> None:  # noqa: FBT001 - an example
    finding = database.postgresql_durability(fsync=fsync, full_page_writes=pages, synchronous_commit=commit)
    assert finding.verdict is verdict


@pytest.mark.parametrize(
    ("flush", "binlog", "sync", "doublewrite", "verdict"),
    [
        (1, True, 1, True, OK),
        (1, False, 0, True, OK),
        (2, True, 1, True, FAIL),
        (1, True, 0, True, WARN),
        (1, False, 0, False, WARN),
    ],
)
def test_innodb_too(flush: int, binlog: bool, sync: int, doublewrite: bool, verdict: Verdict) -> None:  # noqa: FBT001 - an example
    finding = database.mysql_durability(flush=flush, binlog=binlog, sync_binlog=sync, doublewrite=doublewrite)
    assert finding.verdict is verdict


def test_slots_and_prepared_transactions() -> None:
    assert database.slots([("a", 10)]).verdict is OK
    assert database.slots([("a", 2 * 1024**3)]).evidence.endswith("a keeps 2.0 GB")
    assert database.prepared_limit(0, 100, is_used=False).verdict is SKIP
    assert database.prepared_limit(0, 100, is_used=True).verdict is FAIL
    assert database.prepared_limit(50, 100, is_used=True).verdict is WARN
    assert database.prepared_limit(100, 100, is_used=True).verdict is OK


def test_sqlite() -> None:
    assert database.journal("wal", 0).verdict is OK
    assert database.journal("delete", 0).verdict is WARN
    assert database.journal("wal", 2 * 1024**3).verdict is WARN
    assert [database.disk(kind).verdict for kind in (None, "nfs4", "tmpfs", "ext4")] == [SKIP, FAIL, WARN, OK]
