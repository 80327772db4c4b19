"""What a relay does with messages that are not simply sent, and how it learns of new ones; on every database."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from postroom import Message, Outbox, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.errors import InvalidSetting, SchemaMissing
from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postroom.telemetry.events import Event
    from tests.conftest import FreshDatabase
    from tests.services.pgbouncer import PgBouncer

KINDS = ["sqlite", "postgresql", "mariadb"]
PATIENCE = 60


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


every_database = pytest.mark.parametrize("kind", KINDS)


@every_database
async def test_L_1_expired_is_settled_scheduled_waits_and_the_rest_is_sent(service: Service) -> None:
    before, after = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
    for key in (None, "k"):
        service.commit(
            Message.new("t", "expired", key=key, expires_at=before),
            Message.new("t", "scheduled", key=key, deliver_at=after),
            Message.new("t", "due", key=key, deliver_at=before),
            Message.new("t", "plain", key=key),
        )
    broker = MemoryBroker()
    report = await Relay(service.url, broker).run_once()
    assert sorted(message.payload or b"" for message in broker.messages) == [b"due", b"due", b"plain", b"plain"]
    assert (report.sent, report.expired) == (4, 2)
    status = service.status()
    assert (status.sent, status.expired, status.waiting, status.pending) == (4, 2, 2, 0)


@every_database
async def test_L_11_with_dedup_the_same_content_is_sent_once(service: Service) -> None:
    service.commit(*(Message.new("t", {"n": n % 3}, key=key) for key in (None, "k") for n in range(9)))
    broker = MemoryBroker()
    report = await Relay(service.url, broker, dedup=True).run_once()
    assert sorted(str(message.payload) for message in broker.messages) == sorted(
        str(Message.new("t", {"n": n}).payload) for n in (0, 1, 2) for _ in (None, "k")
    )
    assert (report.sent, report.duplicates) == (6, 12)
    assert service.status().pending == 0


@every_database
async def test_L_14_the_answer_is_kept_whatever_characters_it_has(service: Service) -> None:
    answers = {"1": "offset 7", "2": "nul \0 and \ud800", "3": 'quotes " \\ {}, NULL', "4": "x" * 10_000}
    service.commit(*(Message.new("t", {}, key=key, type=key) for key in answers), Message.new("t", {}))
    report = await Relay(service.url, lambda message: answers.get(message.type)).run_once()
    assert report.sent == 5
    kept = [row[0] for row in service.rows(f"SELECT answer FROM {service.table('receipt')} ORDER BY position")]
    assert kept == ["offset 7", "nul  and ?", answers["3"], "x" * 4000, None]


@every_database
async def test_L_7_a_suspect_is_sent_alone_and_then_given_up(service: Service) -> None:
    """Claimed again and again without an end: its workers may have died of it."""
    suspect, hopeless, *_ = service.commit(*(Message.new("t", {"n": n}) for n in range(5)))
    limits = DEFAULT_CLAIM_LIMITS
    for message, claims in ((suspect, limits.alone_after), (hopeless, limits.dead_after)):
        service.execute(
            f"UPDATE {service.table('delivery')} SET claims = {claims} WHERE position = "
            f"(SELECT position FROM {service.table('outbox')} WHERE id = '{message.id}')"
        )
    calls: list[list[Any]] = []

    async def publish(messages: list[Message]) -> None:
        calls.append([message.id for message in messages])

    report = await Relay(service.url, publish).run_once()
    assert [suspect.id] in calls
    assert all(hopeless.id not in call for call in calls)
    assert (report.sent, report.dead) == (4, 1)


@every_database
async def test_R_6_an_outbox_wakes_the_relay_of_its_own_process(service: Service) -> None:
    broker = MemoryBroker()
    sent = asyncio.Event()

    def listen(_event: Event) -> None:
        if relay.report.sent == 2:
            sent.set()

    relay = Relay(service.url, broker, poll_interval_sec=3600, hook=listen)
    async with asyncio.timeout(PATIENCE), relay:
        service.commit(Message.new("t", "plain"), Message.new("t", "keyed", key="k"))
        await sent.wait()
    assert len(broker.messages) == 2


async def test_R_6_a_commit_in_another_process_wakes_it_by_notify(ready_database: FreshDatabase) -> None:
    with closing(Service(ready_database("postgresql"))) as service:
        sent = asyncio.Event()

        def listen(_event: Event) -> None:
            if relay.report.sent == 2:
                sent.set()

        relay = Relay(service.url, MemoryBroker(), poll_interval_sec=3600, notify=True, hook=listen)
        program = (
            "import sys, psycopg; from postroom import Outbox\n"
            "with psycopg.connect(sys.argv[1]) as connection:\n"
            "    for key in (None, 'k'): Outbox(notify=True).add(connection, 't', key=key)"
        )
        async with asyncio.timeout(PATIENCE), relay:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, service.url)
            assert await child.wait() == 0
            await sent.wait()


async def test_a_relay_works_behind_pgbouncer(pgbouncer: PgBouncer, fresh_database: FreshDatabase) -> None:
    database = make_url(fresh_database("postgresql")).database
    assert database
    with closing(Service(pgbouncer.url(database))) as service:
        service.commit(*(Message.new("t", {"n": n}, key=None if n % 2 else n % 20) for n in range(500)))
        first, second = MemoryBroker(), MemoryBroker()
        relays = [Relay(service.url, broker, notify=True) for broker in (first, second)]
        await asyncio.gather(*(relay.run_until_empty() for relay in relays))
        assert len(first.messages) + len(second.messages) == 500
        assert service.status().sent == 500


@every_database
async def test_until_empty_ends_with_held_dead_and_scheduled_messages_left(service: Service) -> None:
    service.commit(
        Message.new("t", "poison", key="k"),
        Message.new("t", "held", key="k"),
        Message.new("t", "later", deliver_at=datetime.now(UTC) + timedelta(hours=1)),
        Message.new("t", "free"),
    )

    def publish(message: Message) -> None:
        if message.payload == b"poison":
            raise ValueError("no")

    async with asyncio.timeout(PATIENCE):
        relay = Relay(service.url, publish, policy=RetryPolicy.table([0], max_attempts=2))
        report = await relay.run_until_empty()
    assert (report.sent, report.retried, report.dead) == (1, 1, 1)
    status = service.status()
    assert (status.dead, status.held, status.waiting) == (1, 1, 1)


async def test_two_relays_in_one_process_on_one_sqlite_file_share_the_work(ready_database: FreshDatabase) -> None:
    with closing(Service(ready_database("sqlite"))) as service:
        service.commit(*(Message.new("t", {"n": n}, key=None if n % 2 else n % 40) for n in range(2000)))
        brokers = [MemoryBroker(), MemoryBroker()]
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(Relay(service.url, broker, batch=50).run_until_empty() for broker in brokers))
        assert sum(len(broker.messages) for broker in brokers) == 2000


async def test_a_broker_of_the_callers_stays_open_and_each_run_has_its_own_report(postroom_database: str) -> None:
    class Closing(MemoryBroker):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    broker = Closing()
    with closing(Service(postroom_database)) as service:
        relay = Relay(service.url, broker)
        service.commit(Message.new("t"))
        assert (await relay.run_once()).sent == 1
        service.commit(Message.new("t"), Message.new("t"))
        assert (await relay.run_once()).sent == 2
        assert broker.closed == 0
        service.commit(Message.new("t"))
        relay.stop()
        assert (await relay.run_once()).sent == 0, "stopped before it began"
        assert (await relay.run_once()).sent == 1


async def test_R_8_a_run_says_whether_the_broker_could_be_reached(postroom_database: str) -> None:
    def publish(_message: Message) -> None:
        raise ConnectionError("refused")

    with closing(Service(postroom_database)) as service:
        service.commit(Message.new("t"))
        report = await Relay(service.url, publish).run_once()
        assert (report.sent, report.retried, report.broker_down) == (0, 0, True)
        assert (await Relay(service.url, MemoryBroker()).run_once()).broker_down is False


async def test_a_hook_that_raises_stops_nothing(postroom_database: str, caplog: pytest.LogCaptureFixture) -> None:
    def hook(_event: Event) -> None:
        raise RuntimeError("secret")

    with closing(Service(postroom_database)) as service:
        service.commit(Message.new("t"))
        assert (await Relay(service.url, MemoryBroker(), hook=hook).run_once()).sent == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch": 0}, "batch"),
        ({"concurrency": -1}, "concurrency"),
        ({"lock_lease_sec": float("inf")}, "lock_lease_sec"),
        ({"lane_lease_sec": float("nan")}, "lane_lease_sec"),
        ({"backoff_sec": []}, "backoff_sec"),
        ({"backoff_sec": [-1]}, "backoff_sec"),
        ({"order": "sideways"}, "order"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"broker": 7}, "broker"),
    ],
)
async def test_R_1_a_wrong_value_is_a_clear_error(wrong: dict[str, Any], named: str) -> None:
    broker = wrong.pop("broker", MemoryBroker())
    with pytest.raises(InvalidSetting, match=named):
        await Relay("sqlite:///none.db", broker, **wrong).run_once()


@pytest.mark.parametrize("way", ["run", "run_once", "async with"])
async def test_a_missing_database_file_is_said_and_not_made(way: str, tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    relay = Relay(f"sqlite:///{file}", MemoryBroker())
    begin = relay.__aenter__ if way == "async with" else getattr(relay, way)
    with pytest.raises(SchemaMissing, match="postroom init"):
        await begin()
    assert not file.exists()


async def test_R_3_without_a_topic_the_type_decides(postroom_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_ROUTES", "OrderCreated=orders.created, OrderPaid = payments")
    with closing(Service(postroom_database)) as service, service.engine.begin() as connection:
        outbox = Outbox()
        topics = [
            outbox.add(connection, None, {}, type="OrderCreated").topic,
            outbox.add(connection, None, {}, type="OrderPaid").topic,
            outbox.add(connection, None, {}, type="Other").topic,
            outbox.add(connection, "given", {}, type="OrderPaid").topic,
            Outbox(routes={"Other": "others"}).add(connection, None, {}, type="Other").topic,
        ]
        with pytest.raises(ValueError, match="neither topic nor type"):
            outbox.add(connection, None, {})
    assert topics == ["orders.created", "payments", "events.default", "given", "others"]
