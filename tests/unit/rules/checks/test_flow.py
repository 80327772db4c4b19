from __future__ import annotations

import pytest

from postroom.rules.checks import flow
from postroom.rules.checks.findings import DAY, Verdict
from postroom.rules.checks.flow import DownWorker, HeldKey, Overdue, Waiting

OK, WARN, FAIL = Verdict.OK, Verdict.WARN, Verdict.FAIL


@pytest.mark.parametrize(
    ("queue", "remedy"),
    [
        ("default", "start `postroom relay`"),
        ("topic:*", "start `postroom relay`"),
        ("topic:mails.*", "start a relay with `--broker-for mails.*=URL`"),
        ("handler:billing", "start `postroom consume --app MODULE:OBJECT` with the consumer billing"),
        ("saga:place_order", "start `postroom relay --app MODULE:OBJECT` with this saga"),
        ("twophase", "start `postroom relay --app MODULE:OBJECT` with this TwoPhaseCommit"),
    ],
)
def test_a_queue_without_a_worker_and_who_would_serve_it(queue: str, remedy: str) -> None:
    finding = flow.workers([Waiting(queue, pending=2), Waiting("done", dead=1)], {"other"})
    assert (finding.verdict, finding.remedy, finding.figures) == (FAIL, remedy, {"unserved": {queue: 2}})
    assert flow.workers([Waiting(queue, later=2)], set()).verdict is WARN
    assert flow.workers([Waiting(queue, pending=2)], {queue}).verdict is OK


def test_how_long_messages_wait() -> None:
    assert flow.oldest([]).verdict is OK
    assert flow.oldest([Waiting("a", 1, oldest_seconds=59)]).verdict is OK
    late = flow.oldest([Waiting("a", 1, oldest_seconds=61), Waiting("b", 1, oldest_seconds=70)])
    assert (late.verdict, late.figures["queue"]) == (WARN, "b")
    assert flow.oldest([Waiting("a", 1, oldest_seconds=900)]).verdict is FAIL


def test_dead_letters_by_reason() -> None:
    assert flow.dead({}, more=False).verdict is OK
    found = flow.dead({"": 1, "TIMEOUT": 3}, more=True)
    assert found.evidence == "4 dead letters or more: 3 TIMEOUT, 1 without a code"
    assert "or more" not in flow.dead({"TIMEOUT": 1}, more=False).evidence


def test_keys_behind_a_dead_letter() -> None:
    retried = HeldKey("default", "ada", 5, "id-1", is_dead=False)
    assert flow.held([]).verdict is OK
    assert flow.held([retried]).verdict is OK
    dead = [HeldKey("default", "eve", n, f"id-{n}", is_dead=True) for n in (2, 3)]
    found = flow.held([retried, *dead])
    assert found.evidence == "2 keys held back by a dead letter: 3 messages behind id-3, 2 messages behind id-2"
    assert "requeue id-3" in found.remedy


def test_topics_brokers_and_leases() -> None:
    assert flow.targets({}).verdict is OK
    assert flow.targets({"a": (2, "full")}).figures == {"waiting": {"a": 2}}
    down = DownWorker("relay-1", "host", "refused")
    assert flow.broker_down(2, []).verdict is OK
    assert flow.broker_down(2, [down]).verdict is WARN
    assert flow.broker_down(1, [down]).verdict is FAIL
    assert flow.leases(0, 0).verdict is OK
    assert flow.leases(3, 10).verdict is OK
    assert flow.leases(3, 301).verdict is WARN


def test_retention() -> None:
    week = 7 * DAY
    assert flow.retention(Overdue(), week, week, by_relay=True).verdict is OK
    assert flow.retention(Overdue(week, week, 10), week, week, by_relay=True).verdict is OK
    late = flow.retention(Overdue(9 * DAY, 9 * DAY, 2 * DAY), week, week, by_relay=False)
    assert [words in late.evidence for words in ("messages settled", "inbox marks", "idempotency keys")] == [True] * 3
    assert "cleanup_every_sec" in late.remedy
    with_partitions = Overdue(9.5 * DAY, left_to_partitions=2 * DAY)
    assert flow.retention(with_partitions, week, week, by_relay=True).verdict is OK
    assert "no relay does" in flow.retention(Overdue(9 * DAY), week, week, by_relay=True).remedy


def test_halves_of_messages_and_of_requests() -> None:
    assert flow.incomplete([], 10).verdict is OK
    assert flow.incomplete(["id-1"], 10).verdict is FAIL
    assert flow.ledger(0, 0).verdict is OK
    assert flow.ledger(1, 60).verdict is OK
    assert flow.ledger(1, 3601).verdict is WARN
