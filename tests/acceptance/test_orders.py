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

from examples.ending import end
from examples.orders.exchange import Mood
from examples.orders.processes import Street, kill, wait_until
from examples.orders.run import ORDERS, audit
from examples.orders.service import FIND, Asked, engine_of
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

    from examples.ending import Process
    from tests.conftest import FreshDatabase

KINDS = ("sqlite", "postgresql")
SECONDS = 120
"""A bound for a machine that does much else; the whole story takes about ten."""
PATIENT = "60000"
"""Milliseconds: a relay that waits for its answer for as long as the test needs."""


class Desk:
    """A client, an operator and whoever breaks things, around one street."""

    def __init__(self, street: Street, capsys: pytest.CaptureFixture[str]) -> None:
        self.street = street
        self._capsys = capsys
        self._stack = ExitStack()

    def relay(self, name: str, **settings: str) -> Process:
        started = self.street.start_relay(name, **settings)
        self._stack.callback(end, started)
        return started

    def order(self, key: str) -> str:
        """Place an order; returns the id of its message."""
        answer = self.street.order(key)
        assert (answer.status_code, answer.headers["location"]) == (202, f"/do/order/{key}")
        told = self.street.outcome(key)
        assert told["status"] == "pending"
        message: str = told["message"]
        return message

    def postroom(self, *arguments: str) -> Any:
        """What an operator's command prints."""
        assert main([*arguments, "--database", self.street.database, "--json"]) == 0
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
        wait_until(lambda: self.street.calls(key) == count, f"call {count} of {key} is there")

    def succeeded(self, key: str) -> bool:
        """Whether outcome, repetition and exchange agree that the order was carried out, once."""
        told, again = self.street.outcome(key), self.street.order(key)
        assert (told["status"], told["http_status"]) == ("succeeded", 200)
        assert (again.status_code, again.json()) == (200, told["answer"])
        return bool(self.street.trades()[key] == told["answer"])

    def close(self) -> None:
        self._stack.close()
        self.street.be(Mood.NORMAL)


@contextmanager
def no_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("POSTROOM_", "OUTBOX_", "BROKER_", "IDEMPOTENCY_")):
                patch.delenv(name)
        yield


@pytest.fixture(scope="module", params=KINDS)
def street(
    request: pytest.FixtureRequest, module_database: FreshDatabase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Street]:
    directory = tmp_path_factory.mktemp("street")
    with no_settings(), Street(directory, module_database(request.param), free_port) as street:
        yield street


@pytest.fixture
def desk(street: Street, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with closing(Desk(street, capsys)) as desk:
        yield desk


def test_W_101_pending_sending_succeeded(desk: Desk) -> None:
    message = desk.order("W-101")
    assert desk.shown(message)["status"] == "pending"
    desk.street.be(Mood.SILENT)
    desk.relay("relay", BROKER_TIMEOUT_MS=PATIENT)
    desk.wait_for_calls("W-101", 1)
    shown = desk.shown(message)
    assert (shown["status"], shown["owner"]) == ("sending", "relay")
    assert desk.street.outcome("W-101")["status"] == "pending"
    desk.street.be(Mood.NORMAL)
    desk.wait_for_status(message, "sent")
    assert desk.succeeded("W-101")
    assert desk.street.calls("W-101") == 1


def test_W_102_a_timeout_waits_for_its_second_attempt_which_succeeds(desk: Desk) -> None:
    desk.street.be(Mood.SILENT)
    message = desk.order("W-102")
    desk.relay("relay", BROKER_TIMEOUT_MS="1500", OUTBOX_BACKOFF_SEC="60")
    desk.wait_for_status(message, "waiting")
    shown = desk.shown(message)
    assert (shown["reason"], shown["attempts"], shown["error_code"]) == ("retry", 1, "TIMEOUT")
    assert desk.postroom("status")["waiting"] == 1
    assert desk.street.outcome("W-102")["status"] == "pending"
    with closing(Store(desk.street.database)) as store:
        clock.advance(store, 60)
    desk.wait_for_status(message, "sent")
    assert desk.shown(message)["attempts"] == 1
    assert desk.succeeded("W-102")
    assert desk.street.calls("W-102") == 2


def test_W_103_what_a_killed_relay_held_another_sends_when_the_lease_has_ended(desk: Desk) -> None:
    desk.street.be(Mood.SILENT)
    message = desk.order("W-103")
    victim = desk.relay("victim", BROKER_TIMEOUT_MS=PATIENT)
    desk.wait_for_calls("W-103", 1)
    kill(victim)
    assert victim.returncode == -signal.SIGKILL
    assert desk.street.outcome("W-103")["status"] == "pending"
    desk.relay("heir")
    desk.wait_for_status(message, "sent")
    assert desk.shown(message)["attempts"] == 0  # a crash burns none
    assert desk.street.calls("W-103") == 2
    assert desk.succeeded("W-103")


def test_W_104_attempts_used_up_are_the_end_until_an_operator_queues_it_again(desk: Desk) -> None:
    desk.street.be(Mood.FAILING)
    message = desk.order("W-104")
    desk.relay("relay", OUTBOX_MAX_ATTEMPTS="2")
    desk.wait_for_status(message, "dead")
    shown, told, again = desk.shown(message), desk.street.outcome("W-104"), desk.street.order("W-104")
    assert (shown["attempts"], shown["error_code"]) == (2, "HTTP_503")
    assert (told["status"], told["http_status"], told["answer"]["reason_code"]) == ("unknown", 503, "HTTP_503")
    assert (again.status_code, again.headers["content-type"]) == (503, "application/problem+json")
    assert "W-104" not in desk.street.trades()
    desk.street.be(Mood.NORMAL)
    desk.street.be(Mood.SILENT)
    assert desk.postroom("dead", "requeue", message, "--yes")["requeued"] == 1
    assert desk.street.outcome("W-104")["status"] == "pending"
    assert desk.street.order("W-104").status_code == 202
    desk.street.be(Mood.NORMAL)
    desk.wait_for_status(message, "sent")
    assert desk.succeeded("W-104")
    assert desk.street.calls("W-104") == 3


def test_W_105_what_the_ledger_knows_to_have_succeeded_is_brought_in_line_and_not_sent(desk: Desk) -> None:
    message = desk.order("W-105")
    confirm_by_hand(desk.street, "W-105")
    assert desk.shown(message)["status"] == "pending"
    desk.relay("relay")
    desk.wait_for_status(message, "sent")
    told = desk.street.outcome("W-105")
    assert (told["status"], told["answer"]) == ("succeeded", {"exchange_id": "by telephone"})
    assert desk.street.calls("W-105") == 0


def confirm_by_hand(street: Street, key: str) -> None:
    """Write into the ledger what a worker writes that dies before it gets to the outbox."""
    engine = engine_of(street.database)
    with engine.connect() as connection:
        asked = Asked("demo", key, connection.execute(FIND, {"tenant": "demo", "key": key}).one().digest)
    engine.dispose()
    response = Response(200, body=b'{"exchange_id": "by telephone"}')
    with closing(Store(street.database)) as store:
        confirmation = Confirmation(asked.scope, asked.key, asked.digest, succeeded=True, response=response)
        assert store.run(Confirmations(store.names).confirm([confirmation], 3600)) == [Verdict.CONFIRMED]


def test_R_5_an_exchange_that_dies_during_a_call_counts_once_and_one_that_is_away_never(desk: Desk) -> None:
    desk.street.be(Mood.DYING)
    message = desk.order("quake")
    desk.relay("relay", OUTBOX_MAX_ATTEMPTS="2")
    wait_until(lambda: desk.shown(message)["reason"] == "broker_down", "the relay notices that the exchange is away")
    desk.street.start_exchange_again()
    desk.wait_for_status(message, "sent")
    assert desk.shown(message)["attempts"] == 1
    assert desk.succeeded("quake")
    assert desk.street.calls("quake") == 2


@pytest.mark.parametrize(
    ("mood", "code", "http_status"), [(Mood.SILENT, "TIMEOUT", 504), (Mood.DYING, "CONNECTION", 502)]
)
def test_E_1_an_order_that_was_carried_out_is_unknown_and_not_failed_until_it_is_queued_again(
    desk: Desk, mood: Mood, code: str, http_status: int
) -> None:
    desk.street.be(mood)
    message = desk.order(mood)
    desk.relay("relay", OUTBOX_MAX_ATTEMPTS="1", BROKER_TIMEOUT_MS="1500")
    desk.wait_for_status(message, "dead")
    if mood is Mood.DYING:
        desk.street.start_exchange_again()
    told, again, traded = desk.street.outcome(mood), desk.street.order(mood), desk.street.trades()
    assert (told["status"], told["http_status"], told["answer"]["reason_code"]) == ("unknown", http_status, code)
    assert again.status_code == http_status
    assert desk.postroom("dead", "requeue", message, "--yes")["requeued"] == 1
    desk.wait_for_status(message, "sent")
    assert desk.succeeded(mood)
    assert desk.street.trades() == traded
    assert desk.street.calls(mood) == 2


def test_K_2_what_a_client_is_answered(desk: Desk) -> None:
    street = desk.street
    desk.order("K-2")
    again, other = street.order("K-2"), street.order("K-2", quantity=2)
    assert (again.status_code, again.json()) == (202, {"key": "K-2", "status": "pending"})
    wish = {"symbol": "ACME", "side": "buy", "quantity": 1}
    keyless = street.service.post("/do/order", json=wish)
    too_long = street.service.post("/do/order", json=wish, headers={"Idempotency-Key": "k" * 65})
    unseen = street.service.post("/do/order", json=wish, headers={"Idempotency-Key": "k\x7f"})
    nonsense = street.service.post("/do/order", json={**wish, "quantity": -1}, headers={"Idempotency-Key": "K-3"})
    unknown = street.service.get("/do/order/K-4")
    foreign = street.service.get("/do/order/K-2", headers={"X-Tenant": "other"})
    answers = (other, keyless, too_long, unseen, nonsense, unknown, foreign)
    assert [one.status_code for one in answers] == [409, 400, 400, 400, 422, 404, 404]
    assert {one.headers["content-type"] for one in answers} == {"application/problem+json"}
    assert {one.json()["status"] == one.status_code for one in answers} == {True}


def test_K_2_the_same_order_at_the_same_time_is_taken_once(desk: Desk) -> None:
    before = desk.postroom("status")["pending"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: desk.street.order("at/once"), range(16)))
    assert {one.status_code for one in answers} == {202}
    assert desk.street.service.get(answers[0].headers["location"]).json()["key"] == "at/once"
    assert desk.postroom("status")["pending"] == before + 1


def test_K_1_a_key_whose_outcome_is_kept_no_longer_is_not_taken_for_another_order(desk: Desk) -> None:
    message = desk.order("K-1")
    desk.relay("relay")
    desk.wait_for_status(message, "sent")
    with closing(Store(desk.street.database)) as store:
        clock.advance(store, 25 * 3600)
    answers = desk.street.order("K-1"), desk.street.order("K-1", quantity=2), desk.street.service.get("/do/order/K-1")
    assert [one.status_code for one in answers] == [410, 410, 410]


@pytest.mark.parametrize("kind", [*KINDS, "mariadb"])
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


class Told(Street):
    """A street of which is known what everybody would tell."""

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
    assert audit(Told(outcomes, calls, done)) == []
    assert len(audit(Told({**outcomes, "typo": {**bad, "http_status": 500}}, calls, done))) == 1
    assert len(audit(Told({**outcomes, "fine": bad}, calls, done))) == 2
    assert len(audit(Told(outcomes, {**calls, "lost": 1}, done))) == 1
    assert len(audit(Told(outcomes, calls, {**done, "typo": {}}))) == 1
    assert len(audit(Told(outcomes, calls, {**done, "fine again": {}}))) == 1
