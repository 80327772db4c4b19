"""The scenario: orders come in, everything breaks in turn, and each order is executed once or refused."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.orders.exchange import Mood
from examples.orders.processes import OrderSystem, kill
from examples.shutdown import call, signals_deferred
from examples.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from examples.shutdown import Process

LINE = "{:<10} {:<55} {:>5}  {}"


class Expected(NamedTuple):
    """An order of the scenario: what happens to it, and how it must end."""

    key: str
    what: str
    status: str = "succeeded"
    http_status: int = HTTPStatus.OK
    fewest_calls: int = 1


ORDERS = (
    Expected("fine", "nothing went wrong"),
    Expected("typo", "the exchange does not know the symbol", "failed", HTTPStatus.UNPROCESSABLE_ENTITY),
    Expected("lost", "no answer came in time, and the relay asked again", fewest_calls=2),
    Expected("killed", "the relay was killed during the call; another took over", fewest_calls=2),
    Expected("unlucky", "all attempts failed; an operator queued it again", fewest_calls=2),
    Expected("quake", "the exchange died during the call, and came back", fewest_calls=2),
)


class Scenario:
    """The steps, and the errors found."""

    def __init__(self, system: OrderSystem) -> None:
        self._system = system
        self.wrong: list[str] = []

    def run(self) -> None:
        """Run all steps, one after the other."""
        first = self._ask_again()
        self._order("typo", symbol="ACMEE")
        self._settled("typo", "failed")
        print("An order for what the exchange does not know has failed at once.")
        self._lose_the_answer()
        self._kill(first)
        self._use_up_the_attempts()
        self._kill_the_exchange()

    def _ask_again(self) -> Process:
        self._system.set_mood(Mood.SLOW)
        self._order("fine", quantity=5)
        self._order("fine", quantity=5)
        print("An order is placed twice, with the same key: 202, and 202 …")
        relay = self._system.start_relay("relay-1", OUTBOX_MAX_ATTEMPTS="4")
        self._settled("fine", "succeeded")
        self._system.set_mood(Mood.NORMAL)
        again = self._order("fine", HTTPStatus.OK, quantity=5)
        print(f"… and again when a relay has brought it to the exchange: {again} …")
        self._order("fine", HTTPStatus.CONFLICT, quantity=6)
        print("… and again, with another quantity: 409.")
        return relay

    def _lose_the_answer(self) -> None:
        print("The exchange carries an order out, but does not answer …")
        self._system.set_mood(Mood.SILENT)
        self._order("lost")
        self._settled("lost", "succeeded")
        print("… until it is asked again.")

    def _kill(self, relay: Process) -> None:
        self._order("killed")
        wait_until(lambda: self._system.calls("killed"), "the relay calls the exchange")
        kill(relay)
        print("The relay is killed (SIGKILL) while it waits for an answer …")
        self._system.start_relay("relay-2")
        self._settled("killed", "succeeded")
        print("… and another takes over when the lease has ended.")

    def _use_up_the_attempts(self) -> None:
        self._system.set_mood(Mood.FAILING)
        self._order("unlucky")
        self._settled("unlucky", "unknown")
        answered = self._order("unlucky", HTTPStatus.SERVICE_UNAVAILABLE)
        print("The exchange fails until all attempts are used up. Did it carry the order out at one of them? Unknown.")
        print(f"A repeated order is answered: {answered}")
        self._system.set_mood(Mood.NORMAL)
        requeue = [sys.executable, "-m", "postroom", "dead", "requeue", "--code", "HTTP_503", "--yes"]
        with signals_deferred():
            call([*requeue, "--database", self._system.database])
        self._settled("unlucky", "succeeded")
        print("… and after `postroom dead requeue` it is done.")

    def _kill_the_exchange(self) -> None:
        self._system.set_mood(Mood.DYING)
        self._order("quake")
        self._system.start_exchange_again()
        self._settled("quake", "succeeded")
        print("The exchange dies in the middle of an order. It comes back, and the relay with it.")

    def _order(self, key: str, expected: HTTPStatus = HTTPStatus.ACCEPTED, **wish: Any) -> str:
        answer = self._system.order(key, **wish)
        if answer.status_code != expected:
            self.wrong.append(f"{key} was answered {answer.status_code}, not {expected.value}: {answer.text}")
        return answer.text

    def _settled(self, key: str, status: str) -> None:
        wait_until(lambda: self._system.outcome(key)["status"] == status, f"{key} is {status}")


def play(directory: Path, database: str) -> int:
    """Start service, exchange and relay, tell the scenario, print and check what became of the orders."""
    with OrderSystem(directory, database) as system:
        print(f"Orders are taken at {system.url('service')}/do/order, and go to {system.url('exchange')}.\n")
        scenario = Scenario(system)
        scenario.run()
        wrong = [*scenario.wrong, *audit(system)]
    for one in wrong:
        print(f"WRONG: {one}")
    if wrong:
        return 1
    print("Every order came to the end that it should, and none was carried out twice.")
    return 0


def audit(system: OrderSystem) -> list[str]:
    """Print the orders; returns the errors found."""
    print("\n" + LINE.format("order", "what happened", "calls", "outcome"))
    wrong = []
    trades = system.trades()
    for order in ORDERS:
        found, calls = system.outcome(order.key), system.calls(order.key)
        print(LINE.format(order.key, order.what, calls, f"{found['status']}: {_summary(found)}"))
        if (found["status"], found["http_status"]) != (order.status, order.http_status):
            wrong.append(f"{order.key} is {found['status']} with {found['http_status']}")
        if calls < order.fewest_calls:
            wrong.append(f"{order.key} was sent {calls} times, and not {order.fewest_calls}")
        if trades.pop(order.key, None) != (found["answer"] if order.status == "succeeded" else None):
            wrong.append(f"of {order.key} the exchange knows something else than the ledger")
    print()
    return [*wrong, *(f"the exchange has carried out {key}, which nobody ordered" for key in trades)]


def _summary(found: dict[str, Any]) -> str:
    answer = found["answer"]
    return answer.get("exchange_id") or f"{answer['reason_code']}, {found['http_status']}"
