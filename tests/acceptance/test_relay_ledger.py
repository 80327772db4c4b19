"""Ledger first (L-12): where a message belongs to a keyed request, the ledger is told before the outbox is."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import text

from postroom import Message, Outbox, Relay, RetryPolicy
from postroom.brokers.cloudevents import NATS, Envelope, incoming
from postroom.brokers.memory import MemoryBroker
from postroom.consumer.parked import as_parked
from postroom.errors import InvalidMessage, LeaseLost
from postroom.idempotency import Conflict, Entry, InProgress, Ledger, Replay, Response, Run, digest_of
from postroom.store.admin.retention import expired_entries, swept
from postroom.store.connections.stores import Store
from postroom.telemetry.events import Event, Settled
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.contract import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

every_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
DIGEST = digest_of("POST", "/do/order", body=b"one kettle")
OTHER = digest_of("POST", "/do/order", body=b"two kettles")
OUTBOX = Outbox()
LEDGER = Ledger()


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


def ordered(
    service: Service,
    key: str = "k-1",
    message_key: str | None = None,
    digest: str = DIGEST,
    response: Response | None = None,
) -> Entry:
    """A request that is taken in: its work is a message. The entry is that of whoever does it."""
    with service.engine.begin() as connection:
        decision = LEDGER.begin(connection, key, digest, scope="orders")
        assert isinstance(decision, Run)
        OUTBOX.add(connection, "orders", {"key": key}, key=message_key, ledger=decision.entry)
        return LEDGER.hand_over(connection, decision.entry, response)


def asked(service: Service, key: str = "k-1", digest: str = DIGEST) -> Any:
    with service.engine.begin() as connection:
        return LEDGER.begin(connection, key, digest, scope="orders")


@every_database
@pytest.mark.parametrize("message_key", [None, "customer"], ids=["unkeyed", "keyed"])
async def test_L_12_what_is_sent_has_succeeded_in_the_ledger(service: Service, message_key: str | None) -> None:
    ordered(service, message_key=message_key)
    assert isinstance(asked(service), InProgress)
    seen: list[Any] = []

    def send(_message: Message) -> dict[str, str]:
        seen.append(asked(service))
        return {"status": "ok", "exchange_id": "X-7"}

    report = await Relay(service.url, send, poll_interval_sec=0.05).run_once()
    assert report.sent == 1
    assert isinstance(seen[0], InProgress)
    replayed = asked(service)
    assert isinstance(replayed, Replay)
    assert (replayed.response.status, json.loads(replayed.response.body)) == (200, {"exchange_id": "X-7"})
    assert asked(service, digest=OTHER) == Conflict()


@every_database
async def test_L_12_what_is_dead_has_failed_with_the_status_of_its_reason(service: Service) -> None:
    ordered(service)

    def send(_message: Message) -> None:
        raise TimeoutError("secret")

    relay = Relay(service.url, send, policy=RetryPolicy.table([0], max_attempts=2))
    assert (await relay.run_once()).dead == 1
    replayed = asked(service)
    assert isinstance(replayed, Replay)
    assert (replayed.failed, replayed.response.status) == (True, 504)
    assert json.loads(replayed.response.body)["reason_code"] == "TIMEOUT"
    assert b"secret" not in replayed.response.body
    service.requeue(*service.dead())
    assert isinstance(asked(service), InProgress)
    await Relay(service.url, MemoryBroker()).run_once()
    again = asked(service)
    assert isinstance(again, Replay)
    assert (again.failed, again.response.status) == (False, 200)


@every_database
async def test_L_12_a_request_that_was_handed_over_with_an_answer_has_it_until_its_message_is_sent(
    service: Service,
) -> None:
    accepted = Response(202, (("location", "/orders/k-1"),), b"pending")
    ordered(service, response=accepted)
    assert asked(service) == Replay(accepted)
    assert asked(service, digest=OTHER) == Conflict()
    assert (await Relay(service.url, MemoryBroker()).run_once()).sent == 1
    done = asked(service)
    assert isinstance(done, Replay)
    assert done.response.status == 200


@every_database
def test_L_12_who_has_handed_a_request_over_can_end_it_no_more(service: Service) -> None:
    with service.engine.begin() as connection:
        decision = LEDGER.begin(connection, "k-1", DIGEST, scope="orders")
        assert isinstance(decision, Run)
        heir = LEDGER.hand_over(connection, decision.entry)
        assert not LEDGER.renew(connection, decision.entry)
        assert not LEDGER.fail(connection, decision.entry)
        with pytest.raises(LeaseLost):
            LEDGER.hand_over(connection, decision.entry)
    assert asked(service) == InProgress(60)
    with service.engine.begin() as connection:
        LEDGER.finish(connection, heir, Response(200))
    assert asked(service) == Replay(Response(200))


@every_database
async def test_L_12_requeueing_leaves_entries_that_are_not_its_messages_failure(service: Service) -> None:
    async def died(key: str) -> None:
        def send(_message: Message) -> None:
            raise TimeoutError

        ordered(service, key)
        assert (await Relay(service.url, send, policy=RetryPolicy.table([0], max_attempts=1)).run_once()).dead == 1

    for key in ("done", "other", "gone", "mine"):
        await died(key)
    ledger = service.table("idempotency")
    service.execute(f"UPDATE {ledger} SET status = 'succeeded' WHERE idempotency_key = 'done'")
    service.execute(f"UPDATE {ledger} SET digest = '{OTHER}' WHERE idempotency_key = 'other'")
    service.execute(f"DELETE FROM {ledger} WHERE idempotency_key = 'gone'")
    service.requeue(*service.dead())
    with service.engine.begin() as connection:
        found = {key: LEDGER.look(connection, key, scope="orders") for key in ("done", "other", "gone", "mine")}
    assert {key: one and one.status for key, one in found.items()} == {
        "done": "succeeded",
        "other": "failed",
        "gone": None,
        "mine": "in_progress",
    }


@every_database
async def test_L_12_a_retry_tells_the_ledger_nothing(service: Service) -> None:
    ordered(service)

    def send(_message: Message) -> None:
        raise RuntimeError("not now")

    assert (await Relay(service.url, send).run_once()).retried == 1
    assert isinstance(asked(service), InProgress)


@every_database
@pytest.mark.parametrize("message_key", [None, "customer"], ids=["unkeyed", "keyed"])
async def test_W_105_what_the_ledger_knows_to_be_done_is_not_sent(service: Service, message_key: str | None) -> None:
    entry = ordered(service, message_key=message_key)
    with service.engine.begin() as connection:
        LEDGER.finish(connection, entry, Response(200, body=b"done by hand"))
    broker = MemoryBroker()
    report = await Relay(service.url, broker).run_once()
    assert (report.sent, report.duplicates, broker.messages) == (0, 1, [])
    assert service.status().pending == 0
    replayed = asked(service)
    assert isinstance(replayed, Replay)
    assert replayed.response.body == b"done by hand"


@every_database
@pytest.mark.parametrize("message_key", [None, "customer"], ids=["unkeyed", "keyed"])
async def test_L_12_a_key_of_another_request_is_a_conflict_and_its_ledger_entry_is_left_alone(
    service: Service, message_key: str | None
) -> None:
    entry = ordered(service, message_key=message_key)
    service.commit(Message.new("orders", {"behind": 1}, key=message_key))
    with service.engine.begin() as connection:
        LEDGER.fail(connection, entry)
    service.execute(f"UPDATE {service.table('idempotency')} SET digest = '{OTHER}', status = 'succeeded'")
    broker = MemoryBroker()
    report = await Relay(service.url, broker).run_once()
    assert report.dead == 1
    [letter] = service.dead()
    assert (letter.error_code, letter.attempts) == ("IDEMPOTENCY_CONFLICT", 0)
    assert len(broker.messages) == (1 if message_key is None else 0)  # what is behind it on its key is held
    assert isinstance(asked(service, digest=OTHER), Replay)


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_L_12_a_ledger_that_refuses_to_be_written_burns_no_attempt(service: Service) -> None:
    ordered(service)
    ledger = service.table("idempotency")
    service.execute(f"CREATE TRIGGER full BEFORE UPDATE ON {ledger} BEGIN SELECT RAISE(ABORT, 'full'); END")
    broker = MemoryBroker()
    report = await Relay(service.url, broker, lock_lease_sec=1).run_once()
    assert (report.sent, report.retried, report.dead) == (0, 0, 0)
    assert isinstance(asked(service), InProgress)
    service.execute("DROP TRIGGER full")
    async with Relay(service.url, broker, lock_lease_sec=1) as relay:
        await wait_for(lambda: relay.report.sent == 1)  # when the lease has ended
    assert service.rows(f"SELECT attempts FROM {service.table('receipt')}") == [(0,)]
    assert isinstance(asked(service), Replay)
    assert len(broker.messages) == 2  # at least once: what was sent and could not be written down


def change_hands(service: Service) -> None:
    """The key is another request's now, and that has succeeded."""
    service.execute(f"UPDATE {service.table('idempotency')} SET digest = '{OTHER}', status = 'succeeded'")


@every_database
@pytest.mark.parametrize("message_key", [None, "customer"], ids=["unkeyed", "keyed"])
async def test_L_12_a_conflict_that_is_found_only_after_the_send_is_told_as_one(
    service: Service, message_key: str | None
) -> None:
    ordered(service, message_key=message_key)
    service.commit(Message.new("orders", {"behind": 1}, key=message_key))
    sent: list[Message] = []
    dead: list[str] = []
    events: list[Event] = []

    def send(message: Message) -> None:
        sent.append(message)
        if "key" in message.json():
            change_hands(service)

    def on_dead(_message: Message, code: str, _detail: str) -> None:
        dead.append(code)

    relay = Relay(service.url, send, batch=1, on_dead=on_dead, hook=events.append)
    report = await relay.run_once()
    assert (report.dead, dead) == (1, ["IDEMPOTENCY_CONFLICT"])
    outcomes = Counter(one.outcome for one in events if isinstance(one, Settled))
    assert outcomes == {"outbox_flush_dead": 1, **({} if message_key else {"outbox_flush_success": 1})}
    assert len(sent) == (1 if message_key else 2)  # what is behind it on its key is held
    assert [letter.error_code for letter in service.dead()] == ["IDEMPOTENCY_CONFLICT"]


@every_database
async def test_W_105_what_fails_though_the_ledger_knows_it_to_be_done_is_brought_in_line(service: Service) -> None:
    entry = ordered(service)

    def send(_message: Message) -> None:
        with service.engine.begin() as connection:
            LEDGER.finish(connection, entry, Response(200, body=b"done by hand"))
        raise TimeoutError

    report = await Relay(service.url, send, policy=RetryPolicy.table([0], max_attempts=1)).run_once()
    assert (report.dead, report.duplicates, service.dead()) == (0, 1, [])
    assert asked(service) == Replay(Response(200, body=b"done by hand"))


@every_database
async def test_L_12_a_request_is_in_progress_for_as_long_as_its_message_waits(service: Service) -> None:
    ordered(service)
    with closing(Store(service.url)) as store:
        clock.advance(store, 30 * 24 * 3600)
        assert store.run(swept(expired_entries(store.names))) == 0
    assert isinstance(asked(service), InProgress)
    assert (await Relay(service.url, MemoryBroker()).run_once()).sent == 1
    assert isinstance(asked(service), Replay)


@every_database
@pytest.mark.parametrize("batch", [1, 100])
async def test_L_12_a_second_message_of_an_entry_is_a_repetition(service: Service, batch: int) -> None:
    """As one may be that was added before `add` left entries to messages."""
    entry = ordered(service, message_key="customer")
    second = Message.new("orders", {"n": 2}, ledger=entry, key="customer")
    service.commit(msgspec.structs.replace(second, ledger=None))
    broker = MemoryBroker()
    report = await Relay(service.url, broker, batch=batch).run_once()
    assert (report.sent, report.duplicates, len(broker.messages)) == (1, 1, 1)


@every_database
@pytest.mark.parametrize("answer", ["\ud800", {"status": "ok", "x": "\ud800"}, "a\0b", {1: {2}}], ids=ascii)
async def test_L_12_what_was_sent_has_succeeded_whatever_the_broker_said(service: Service, answer: Any) -> None:
    ordered(service)
    assert (await Relay(service.url, lambda _: answer).run_once()).sent == 1
    replayed = asked(service)
    assert isinstance(replayed, Replay)
    assert replayed.response.status == 200
    assert json.loads(replayed.response.body)


@every_database
@pytest.mark.parametrize("code", ["\ud800", "X" * 100_000], ids=["surrogate", "long"])
async def test_L_12_what_is_dead_has_failed_whatever_its_code(service: Service, code: str) -> None:
    ordered(service)
    policy = RetryPolicy.table([0], max_attempts=1)
    refusal = {"status": "no", "reason_code": code}
    assert (await Relay(service.url, lambda _: refusal, policy=policy).run_once()).dead == 1
    replayed = asked(service)
    assert isinstance(replayed, Replay)
    assert (replayed.failed, replayed.response.status) == (True, 502)
    assert len(json.loads(replayed.response.body)["reason_code"]) <= 64


@every_database
@pytest.mark.parametrize("place", ["x", "[]", '["orders", "k-1"]', '["orders", "k-1", "digest"]'])
async def test_L_12_a_place_that_cannot_be_read_names_no_entry(service: Service, place: str) -> None:
    """As a producer in plain SQL may write one."""
    service.commit(Message.new("orders", {}, headers={"colour": "red"}), Message.new("orders", {}))
    headers = json.dumps({"postroom-ledger": place})
    outbox = service.table("outbox")
    with service.engine.begin() as connection:
        connection.execute(
            text(f"UPDATE {outbox} SET headers = :headers WHERE headers IS NOT NULL"), {"headers": headers}
        )
    broker = MemoryBroker()
    assert (await Relay(service.url, broker).run_once()).sent == 2
    assert len(broker.messages) == 2


@pytest.mark.parametrize("kind", ["sqlite"])
async def test_the_ledgers_place_is_not_sent(service: Service) -> None:
    entry = ordered(service)
    message = Message.new("orders", {}, ledger=entry, headers={"colour": "red"})
    headers, _ = Envelope(NATS).seal(message)
    assert headers["colour"] == "red"
    assert not [name for name in headers if "ledger" in name]
    with pytest.raises(InvalidMessage, match="ledger must be the entry"):
        Message.new("orders", {}, ledger="k-1")  # type: ignore[arg-type]  # which is the point


@pytest.mark.parametrize("kind", ["sqlite"])
def test_nor_can_a_stranger_name_one(service: Service) -> None:
    entry = ordered(service)
    place = json.dumps([entry.scope, entry.key, entry.digest])
    with pytest.raises(InvalidMessage, match="give the entry as ledger="):
        Message.new("orders", {}, headers={"postroom-ledger": place})
    received = incoming(NATS, {"postroom-ledger": place, "colour": "red"}, b"{}", id="1", topic="orders")
    assert received.headers == {"colour": "red"}
    smuggled = msgspec.structs.replace(received, headers={"postroom-ledger": place})
    assert "postroom-ledger" not in as_parked("billing", smuggled).headers
