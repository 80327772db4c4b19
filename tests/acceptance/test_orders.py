"""W-101 … W-105 (E-1): `/do/order` end to end, with service, exchange and relays as processes of their own.

Service and exchange are shared by the tests of a database; each test has relays of its own, and ends them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from examples.orders.exchange import Mood
from examples.orders.processes import OrderSystem, kill
from examples.orders.run import ORDERS, audit
from examples.orders.service import FIND, KeyedOrder, engine_of
from examples.shutdown import end
from examples.waiting import wait_until
from postroom.cli import main
from postroom.idempotency import Response
from postroom.rules.replay import Verdict
from postroom.store.connections.stores import Store
from postroom.store.ledger.confirmations import Confirmation, Confirmations
from tests.acceptance.documents import ROOT
from tests.contract import clock
from tests.services.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.shutdown import Process
    from tests.conftest import FreshDatabase

KINDS = ("sqlite", "postgresql")
SECONDS = 120
"""A bound for a machine that does much else; the whole story takes about ten."""
PATIENT = "60000"
"""Milliseconds: a relay that waits for its answer for as long as the test needs."""


class Operator:
    """A client, an operator and a saboteur of one system."""

    def __init__(self, system: OrderSystem, capsys: pytest.CaptureFixture[str]) -> None:
        self.system = system
        self._capsys = capsys
        self._stack = ExitStack()

    def relay(self, name: str, **settings: str) -> Process:
        started = self.system.start_relay(name, **settings)
        self._stack.callback(end, started)
        return started

    def order(self, key: str) -> str:
        """Place an order; returns the id of its message."""
        answer = self.system.order(key)
        assert (answer.status_code, answer.headers["location"]) == (202, f"/do/order/{key}")
        told = self.system.outcome(key)
        assert told["status"] == "pending"
        message: str = told["message"]
        return message

    def postroom(self, *arguments: str) -> Any:
        """What an operator's command prints."""
        assert main([*arguments, "--database", self.system.database, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def shown(self, message: str) -> dict[str, Any]:
        found: dict[str, Any] = self.postroom("messages", "show", message)
        return found

    def wait_for_status(self, message: str, status: str) -> None:
        seen: list[dict[str, Any]] = []

        def is_there() -> bool:
            seen.append(self.shown(message))
            return bool(seen[-1]["status"] == status)

        try:
            wait_until(is_there, f"the message is {status}")
        except SystemExit as waited:
            pytest.fail(f"{waited}: {seen[-1]}")

    def wait_for_calls(self, key: str, count: int) -> None:
        wait_until(lambda: self.system.calls(key) == count, f"call {count} of {key} is there")

    def succeeded(self, key: str) -> bool:
        """Whether outcome, repetition and exchange agree that the order was carried out, once."""
        told, again = self.system.outcome(key), self.system.order(key)
        assert (told["status"], told["http_status"]) == ("succeeded", 200)
        assert (again.status_code, again.json()) == (200, told["answer"])
        return bool(self.system.trades()[key] == told["answer"])

    def close(self) -> None:
        self._stack.close()
        self.system.set_mood(Mood.NORMAL)


@contextmanager
def no_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("POSTROOM_", "OUTBOX_", "BROKER_", "IDEMPOTENCY_")):
                patch.delenv(name)
        yield


@pytest.fixture(scope="module", params=KINDS)
def system(
    request: pytest.FixtureRequest, module_database: FreshDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OrderSystem]:
    directory = tmp_path_factory.mktemp("system")
    with no_settings(), OrderSystem(directory, module_database(request.param), free_port) as system:
        yield system


@pytest.fixture
def operator(system: OrderSystem, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    with closing(Operator(system, capsys)) as operator:
        yield operator


def test_W_101_pending_sending_succeeded(operator: Operator) -> None:
    message = operator.order("W-101")
    assert operator.shown(message)["status"] == "pending"
    operator.system.set_mood(Mood.SILENT)
    operator.relay("relay", BROKER_TIMEOUT_MS=PATIENT)
    operator.wait_for_calls("W-101", 1)
    shown = operator.shown(message)
    assert (shown["status"], shown["owner"]) == ("sending", "relay")
    assert operator.system.outcome("W-101")["status"] == "pending"
    operator.system.set_mood(Mood.NORMAL)
    operator.wait_for_status(message, "sent")
    assert operator.succeeded("W-101")
    assert operator.system.calls("W-101") == 1


def test_W_102_a_timeout_waits_for_its_second_attempt_which_succeeds(operator: Operator) -> None:
    operator.system.set_mood(Mood.SILENT)
    message = operator.order("W-102")
    operator.relay("relay", BROKER_TIMEOUT_MS="1500", OUTBOX_BACKOFF_SEC="60")
    operator.wait_for_status(message, "waiting")
    shown = operator.shown(message)
    assert (shown["reason"], shown["attempts"], shown["error_code"]) == ("retry", 1, "TIMEOUT")
    assert operator.postroom("status")["waiting"] == 1
    assert operator.system.outcome("W-102")["status"] == "pending"
    with closing(Store(operator.system.database)) as store:
        clock.advance(store, 60)
    operator.wait_for_status(message, "sent")
    assert operator.shown(message)["attempts"] == 1
    assert operator.succeeded("W-102")
    assert operator.system.calls("W-102") == 2


def test_W_103_what_a_killed_relay_held_another_sends_when_the_lease_has_ended(operator: Operator) -> None:
    operator.system.set_mood(Mood.SILENT)
    message = operator.order("W-103")
    victim = operator.relay("victim", BROKER_TIMEOUT_MS=PATIENT)
    operator.wait_for_calls("W-103", 1)
    kill(victim)
    assert victim.returncode == -signal.SIGKILL
    assert operator.system.outcome("W-103")["status"] == "pending"
    operator.relay("heir")
    operator.wait_for_status(message, "sent")
    assert operator.shown(message)["attempts"] == 0  # a crash burns none
    assert operator.system.calls("W-103") == 2
    assert operator.succeeded("W-103")


def test_W_104_attempts_used_up_are_the_end_until_an_operator_queues_it_again(operator: Operator) -> None:
    operator.system.set_mood(Mood.FAILING)
    message = operator.order("W-104")
    relay = operator.relay("relay", OUTBOX_MAX_ATTEMPTS="2", BROKER_TIMEOUT_MS=PATIENT)
    operator.wait_for_status(message, "dead")
    end(relay)
    shown, told, again = operator.shown(message), operator.system.outcome("W-104"), operator.system.order("W-104")
    assert (shown["attempts"], shown["error_code"]) == (2, "HTTP_503")
    assert (told["status"], told["http_status"], told["answer"]["reason_code"]) == ("unknown", 503, "HTTP_503")
    assert (again.status_code, again.headers["content-type"]) == (503, "application/problem+json")
    assert "W-104" not in operator.system.trades()
    operator.system.set_mood(Mood.NORMAL)
    assert operator.postroom("dead", "requeue", message, "--yes")["requeued"] == 1
    assert operator.system.outcome("W-104")["status"] == "pending"
    assert operator.system.order("W-104").status_code == 202
    operator.relay("another", BROKER_TIMEOUT_MS=PATIENT)
    operator.wait_for_status(message, "sent")
    assert operator.succeeded("W-104")
    assert operator.system.calls("W-104") == 3


def test_W_105_what_the_ledger_knows_to_have_succeeded_is_brought_in_line_and_not_sent(operator: Operator) -> None:
    message = operator.order("W-105")
    confirm_by_hand(operator.system, "W-105")
    assert operator.shown(message)["status"] == "pending"
    operator.relay("relay")
    operator.wait_for_status(message, "sent")
    told = operator.system.outcome("W-105")
    assert (told["status"], told["answer"]) == ("succeeded", {"exchange_id": "by telephone"})
    assert operator.system.calls("W-105") == 0


def confirm_by_hand(system: OrderSystem, key: str) -> None:
    """Write into the ledger what a worker writes that dies before it gets to the outbox."""
    engine = engine_of(system.database)
    with engine.connect() as connection:
        asked = KeyedOrder("demo", key, connection.execute(FIND, {"tenant": "demo", "key": key}).one().digest)
    engine.dispose()
    response = Response(200, body=b'{"exchange_id": "by telephone"}')
    with closing(Store(system.database)) as store:
        confirmation = Confirmation(asked.scope, asked.key, asked.digest, succeeded=True, response=response)
        assert store.run(Confirmations(store.names).confirm([confirmation], 3600)) == [Verdict.CONFIRMED]


def test_R_5_an_exchange_that_dies_during_a_call_counts_once_and_one_that_is_away_never(operator: Operator) -> None:
    operator.system.set_mood(Mood.DYING)
    message = operator.order("quake")
    operator.relay("relay", OUTBOX_MAX_ATTEMPTS="2")
    wait_until(lambda: operator.shown(message)["reason"] == "broker_down", "the relay notices the outage")
    operator.system.start_exchange_again()
    operator.wait_for_status(message, "sent")
    assert operator.shown(message)["attempts"] == 1
    assert operator.succeeded("quake")
    assert operator.system.calls("quake") == 2


@pytest.mark.parametrize(
    ("mood", "code", "http_status"), [(Mood.SILENT, "TIMEOUT", 504), (Mood.DYING, "CONNECTION", 502)]
)
def test_E_1_an_order_that_was_carried_out_is_unknown_and_not_failed_until_it_is_queued_again(
    operator: Operator, mood: Mood, code: str, http_status: int
) -> None:
    operator.system.set_mood(mood)
    message = operator.order(mood)
    operator.relay("relay", OUTBOX_MAX_ATTEMPTS="1", BROKER_TIMEOUT_MS="1500")
    operator.wait_for_status(message, "dead")
    if mood is Mood.DYING:
        operator.system.start_exchange_again()
    told, again, traded = operator.system.outcome(mood), operator.system.order(mood), operator.system.trades()
    assert (told["status"], told["http_status"], told["answer"]["reason_code"]) == ("unknown", http_status, code)
    assert again.status_code == http_status
    assert operator.postroom("dead", "requeue", message, "--yes")["requeued"] == 1
    operator.wait_for_status(message, "sent")
    assert operator.succeeded(mood)
    assert operator.system.trades() == traded
    assert operator.system.calls(mood) == 2


def test_K_2_what_a_client_is_answered(operator: Operator) -> None:
    system = operator.system
    operator.order("K-2")
    again, other = system.order("K-2"), system.order("K-2", quantity=2)
    assert (again.status_code, again.json()) == (202, {"key": "K-2", "status": "pending"})
    wish = {"symbol": "ACME", "side": "buy", "quantity": 1}
    keyless = system.service.post("/do/order", json=wish)
    too_long = system.service.post("/do/order", json=wish, headers={"Idempotency-Key": "k" * 65})
    unseen = system.service.post("/do/order", json=wish, headers={"Idempotency-Key": "k\x7f"})
    nonsense = system.service.post("/do/order", json={**wish, "quantity": -1}, headers={"Idempotency-Key": "K-3"})
    unknown = system.service.get("/do/order/K-4")
    foreign = system.service.get("/do/order/K-2", headers={"X-Tenant": "other"})
    answers = (other, keyless, too_long, unseen, nonsense, unknown, foreign)
    assert [one.status_code for one in answers] == [409, 400, 400, 400, 422, 404, 404]
    assert {one.headers["content-type"] for one in answers} == {"application/problem+json"}
    assert {one.json()["status"] == one.status_code for one in answers} == {True}


def test_K_2_the_same_order_at_the_same_time_is_taken_once(operator: Operator) -> None:
    before = operator.postroom("status")["pending"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: operator.system.order("at/once"), range(16)))
    assert {one.status_code for one in answers} == {202}
    assert operator.system.service.get(answers[0].headers["location"]).json()["key"] == "at/once"
    assert operator.postroom("status")["pending"] == before + 1


def test_K_1_a_key_whose_outcome_is_kept_no_longer_is_not_taken_for_another_order(operator: Operator) -> None:
    message = operator.order("K-1")
    operator.relay("relay")
    operator.wait_for_status(message, "sent")
    with closing(Store(operator.system.database)) as store:
        clock.advance(store, 25 * 3600)
    system = operator.system
    answers = system.order("K-1"), system.order("K-1", quantity=2), system.service.get("/do/order/K-1")
    assert [one.status_code for one in answers] == [410, 410, 410]


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])  # on PostgreSQL all of it runs above
def test_E_1_one_command_starts_all_of_it(kind: str, fresh_database: FreshDatabase) -> None:
    database = [] if kind == "sqlite" else ["--database", fresh_database(kind)]
    with no_settings():
        ended = subprocess.run(
            [sys.executable, "-m", "examples.orders", *database],
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
    assert len(re.findall(r"succeeded: X-00\d", ended.stdout)) == 5
    assert "failed: INVALID_TARGET, 422" in ended.stdout
    assert "none was carried out twice" in ended.stdout


class FakedOutcomes(OrderSystem):
    """A system with made-up outcomes, calls and trades."""

    def __init__(self, outcomes: dict[str, Any], calls: dict[str, int], trades: dict[str, Any]) -> None:
        self._outcomes, self._calls, self._trades = outcomes, calls, trades

    def outcome(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = self._outcomes[key]
        return found

    def calls(self, key: str) -> int:
        return self._calls[key]

    def trades(self) -> dict[str, Any]:
        return dict(self._trades)


def test_E_1_the_audit_sees_what_is_wrong() -> None:
    done = {one.key: {"exchange_id": one.key} for one in ORDERS if one.status == "succeeded"}
    good = {key: {"status": "succeeded", "http_status": 200, "answer": trade} for key, trade in done.items()}
    bad = {"status": "failed", "http_status": 422, "answer": {"reason_code": "INVALID_TARGET"}}
    outcomes, calls = {**good, "typo": bad}, {one.key: one.fewest_calls for one in ORDERS}
    assert audit(FakedOutcomes(outcomes, calls, done)) == []
    assert len(audit(FakedOutcomes({**outcomes, "typo": {**bad, "http_status": 500}}, calls, done))) == 1
    assert len(audit(FakedOutcomes({**outcomes, "fine": bad}, calls, done))) == 2
    assert len(audit(FakedOutcomes(outcomes, {**calls, "lost": 1}, done))) == 1
    assert len(audit(FakedOutcomes(outcomes, calls, {**done, "typo": {}}))) == 1
    assert len(audit(FakedOutcomes(outcomes, calls, {**done, "fine again": {}}))) == 1
