from __future__ import annotations

import pytest

from postroom.rules.checks import brokers
from postroom.rules.checks.brokers import BrokerFacts, Certificate, Place
from postroom.rules.checks.findings import DAY, Verdict

OK, WARN, FAIL, SKIP = Verdict.OK, Verdict.WARN, Verdict.FAIL, Verdict.SKIP
SOUND = Place("orders")


def test_reaching_it() -> None:
    assert brokers.reachable(BrokerFacts(0.01, "NATS 2")).evidence == "NATS 2 answered within 10 ms"
    assert brokers.reachable(BrokerFacts(0.01)).evidence == "it took a connection within 10 ms"
    assert brokers.unreachable("refused").verdict is FAIL


@pytest.mark.parametrize(
    ("places", "verdict"), [([], SKIP), ([SOUND], OK), ([SOUND, Place("mails", missing="no such queue")], FAIL)]
)
def test_places(places: list[Place], verdict: Verdict) -> None:
    assert brokers.places(BrokerFacts(places=places)).verdict is verdict


@pytest.mark.parametrize(
    ("known", "verdict"),
    [
        (BrokerFacts(places=[SOUND]), OK),
        (BrokerFacts(figures={"aof_enabled": True}), OK),
        (BrokerFacts(), SKIP),
        (BrokerFacts(places=[Place("mails", missing="none")]), SKIP),
        (BrokerFacts(weakness="appendonly is off", remedy="turn it on"), FAIL),
        (BrokerFacts(places=[SOUND, Place("mails", weakness="in memory", remedy="on disk")]), FAIL),
        (BrokerFacts(places=[SOUND, Place("mails", unknown="not told")]), SKIP),
    ],
)
def test_durability(known: BrokerFacts, verdict: Verdict) -> None:
    assert brokers.durability(known).verdict is verdict


@pytest.mark.parametrize(
    ("replicas", "insync", "verdict"), [(None, None, SKIP), (1, 1, WARN), (3, 1, FAIL), (3, 2, OK), (3, None, OK)]
)
def test_replicas(replicas: int | None, insync: int | None, verdict: Verdict) -> None:
    place = Place("orders", replicas=replicas, min_insync=insync)
    assert brokers.replication(BrokerFacts(places=[place])).verdict is verdict


@pytest.mark.parametrize(("window", "verdict"), [(None, SKIP), (120, OK), (119, WARN)])
def test_how_long_repetitions_are_recognised(window: float | None, verdict: Verdict) -> None:
    assert brokers.dedup_window(BrokerFacts(places=[Place("a", dedup_seconds=window)]), 120).verdict is verdict


@pytest.mark.parametrize(
    ("policy", "limit", "verdict"),
    [(None, 0, SKIP), ("noeviction", 5, OK), ("allkeys-lru", 0, WARN), ("allkeys-lru", 5, FAIL)],
)
def test_full_memory(policy: str | None, limit: int, verdict: Verdict) -> None:
    assert brokers.eviction(BrokerFacts(eviction=policy, memory_limit=limit)).verdict is verdict


@pytest.mark.parametrize(
    ("server", "topic", "verdict"), [(None, None, SKIP), (100, None, OK), (99, None, WARN), (200, 99, WARN)]
)
def test_large_messages(server: int | None, topic: int | None, verdict: Verdict) -> None:
    known = BrokerFacts(max_bytes=server, limit_name="max_payload", places=[Place("a", max_bytes=topic)])
    assert brokers.payload(known, 100).verdict is verdict


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (None, SKIP),
        (Certificate(problem="self-signed"), FAIL),
        (Certificate(seconds_left=2 * DAY), FAIL),
        (Certificate(seconds_left=20 * DAY), WARN),
        (Certificate(seconds_left=90 * DAY), OK),
    ],
)
def test_certificates(shown: Certificate | None, verdict: Verdict) -> None:
    assert brokers.certificate(shown).verdict is verdict


@pytest.mark.parametrize(
    ("encrypted", "password", "local", "verdict"),
    [(True, True, False, OK), (False, True, True, OK), (False, False, False, OK), (False, True, False, WARN)],
)
def test_passwords_in_the_clear(encrypted: bool, password: bool, local: bool, verdict: Verdict) -> None:  # noqa: FBT001 - an example
    finding = brokers.encryption(encrypted=encrypted, has_password=password, is_local=local, secure_scheme="amqps")
    assert finding.verdict is verdict
