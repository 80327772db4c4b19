from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from postroom import schema
from postroom.brokers.inspection.redis import RedisInspector
from postroom.doctor import CHECKS, Check, Verdict, examination, examine, select
from postroom.doctor.surroundings import Surroundings
from postroom.errors import InvalidSetting
from postroom.rules.checks.brokers import BrokerFacts
from postroom.rules.checks.findings import Finding, ok
from postroom.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from postroom.brokers.inspection.port import Inspector


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    schema.create(url)
    return url


def broken(at: Surroundings) -> Finding:
    raise KeyError("p4ss")


def test_a_check_that_raises_or_hangs_is_reported_and_the_others_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    def silent(at: Surroundings) -> Finding:
        at.once("silence", never.wait)
        return ok("at last")

    checks = (
        Check("X_BROKEN", "?", "a", broken),
        Check("X_SILENT", "?", "a", silent),
        Check("X_SILENT_TOO", "?", "a", silent),
        Check("X_SOUND", "?", "a", lambda at: at.read(at.server.writable())),
    )
    monkeypatch.setattr(examination, "CHECKS", checks)
    report = examine(url, broker="redis://:p4ss@127.0.0.1:1", limit=1.5)
    never.set()
    assert [(one.code, one.verdict) for one in report] == [
        ("X_BROKEN", Verdict.FAIL),
        ("X_SILENT", Verdict.FAIL),
        ("X_SILENT_TOO", Verdict.FAIL),
        ("X_SOUND", Verdict.OK),
    ]
    assert report.results[0].evidence == "the check itself failed: KeyError: '***'"
    assert report.results[1].evidence == "no answer within 1.5 s"
    assert report.results[2].seconds < 1, "what got no answer once is not asked again"
    assert (report.verdict, report.failed(), len(report)) == (Verdict.FAIL, True, 4)


def test_codes_are_stable_names_and_select_checks() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert {check.group for check in CHECKS} == {"db", "schema", "flow", "settings", "broker", "saga", "tx", "cdc"}
    assert [check.code for check in select(["saga_*"], ["SAGA_PARKED"])] == ["SAGA_STRANDED"]
    assert select() == list(CHECKS)
    with pytest.raises(InvalidSetting, match="no check 'NONE'"):
        select(skip=["NONE"])


def test_what_was_given_up_stays_so_when_its_connection_breaks_later() -> None:
    at = Surroundings(Settings(database="sqlite://"), [], 1)

    def broken_off() -> int:
        at.give_up()
        raise ConnectionError("the server closed the connection")

    for _ in range(2):
        with pytest.raises(TimeoutError, match="no answer within 1 s"):
            at.once("backlog", broken_off)


def test_facts_are_found_out_once_and_so_are_errors() -> None:
    at = Surroundings(Settings(database="sqlite://"), [], 1)
    calls: list[int] = []

    def fail() -> int:
        calls.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            at.once("a", fail)
    assert len(calls) == 1
    assert [at.once("b", lambda: 7), at.once("b", lambda: 8)] == [7, 7]
    at.close()


def test_a_silent_broker_takes_no_time_from_the_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    silence = threading.Event()

    async def facts(inspector: Inspector, topics: object, timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        if "silent" in inspector.name:
            silence.wait()  # like a name server that says nothing: no event loop can cancel it
        return BrokerFacts()

    monkeypatch.setattr(RedisInspector, "facts", facts)
    found = examine(url, brokers={"a": "redis://silent", "b": "redis://sound"}, only=["BROKER_REACHABLE"], limit=3)
    silence.set()
    assert {one.subject: one.verdict for one in found} == {
        "redis://silent:6379": Verdict.FAIL,
        "redis://sound:6379": Verdict.OK,
    }
