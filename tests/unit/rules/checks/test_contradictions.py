from __future__ import annotations

import pytest

from postroom.rules.checks import contradictions
from postroom.rules.checks.contradictions import RunningRelay
from postroom.rules.checks.findings import Verdict

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL


@pytest.mark.parametrize(
    ("lease", "lane", "timeout", "verdict", "named"),
    [
        (120, 15, 2.5, OK, "lane_lease_sec"),
        (2, 15, 2.5, FAIL, "lock_lease_sec"),
        (120, 2.5, 2.5, FAIL, "lane_lease_sec"),
        (4, 15, 2.5, WARN, "lock_lease_sec"),
    ],
)
def test_leases_outlast_sends(lease: float, lane: float, timeout: float, verdict: Verdict, named: str) -> None:
    finding = contradictions.lease(lease, lane, timeout)
    assert (finding.verdict, named in finding.evidence) == (verdict, True)


@pytest.mark.parametrize(
    ("window", "retries", "oldest", "verdict"),
    [(100, 50, None, OK), (100, 50, 99, OK), (100, 50, 101, WARN), (50, 50, None, FAIL)],
)
def test_inboxes_remember_longer_than_messages_repeat(
    window: float, retries: float, oldest: float | None, verdict: Verdict
) -> None:
    assert contradictions.inbox_window(window, retries, oldest).verdict is verdict


@pytest.mark.parametrize(("wanted", "pooled"), [(False, False), (False, True), (True, False), (True, True)])
def test_notifications_need_a_direct_connection(wanted: bool, pooled: bool) -> None:  # noqa: FBT001 - an example
    expected = WARN if wanted and pooled else OK
    assert contradictions.notify(wanted=wanted, pooled=pooled).verdict is expected


def test_libraries_and_names() -> None:
    assert contradictions.extras({}).verdict is OK
    missing = contradictions.extras({"nats:": "nats", "http_port": "metrics"})
    assert missing.remedy == "run pip install 'postroom[metrics,nats]'"
    assert contradictions.known([]).verdict is OK
    assert contradictions.known(["POSTROOM_BATCHES"]).verdict is WARN


def test_relays_agree() -> None:
    plain = RunningRelay("a", frozenset({"default"}), down=False)
    routed = RunningRelay("b", frozenset({"topic:*", "topic:mails"}), down=False)
    assert contradictions.relays_agree([]).verdict is Verdict.SKIP
    assert contradictions.relays_agree([plain, plain]).verdict is OK
    disagree = contradictions.relays_agree([plain, routed])
    assert disagree.evidence.endswith("a alone serves default, b alone serves *, mails")
    subset = RunningRelay("c", frozenset({"topic:*"}), down=False)
    assert "c alone" not in contradictions.relays_agree([routed, subset]).evidence
    down = RunningRelay("d", frozenset({"default"}), down=True)
    assert contradictions.relays_agree([plain, down]).verdict is WARN
    assert contradictions.relays_agree([down]).verdict is OK


def test_switched_off() -> None:
    assert contradictions.enabled(is_on=True, pending=3).verdict is OK
    assert contradictions.enabled(is_on=False, pending=0).verdict is OK
    assert contradictions.enabled(is_on=False, pending=3).verdict is WARN
