"""A shop whose outbox has something of everything, for tests of the dashboard."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from postroom import Inbox, Ledger, Message, Relay, RetryPolicy, Saga
from postroom.errors import Refused
from postroom.idempotency import Response, Run
from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.twophase.log import TwoPhaseLog
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from postroom.saga.context import SagaContext

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "card 4111-1111"  # noqa: S105 - of a customer who does not exist
"""Is in payloads and headers, and nowhere else."""
ERRORS = {
    "payments.captured": ("INVALID_TARGET", "account {n} of customer 'c-{n}' is closed"),
    "mails.welcome": ("UNDECODABLE_PAYLOAD", "field 'email' is missing in record {n}"),
    "invoices.issued": ("INVALID_HEADER", "schema registry has no version {n} of invoice"),
}
ONCE = RetryPolicy.table([0.1], max_attempts=1)

saga: Saga[Any] = Saga("place_order")


@saga.step
def reserve(context: SagaContext[Any]) -> str:
    return "seat 7"


@reserve.compensation(retry=ONCE)
def release(context: SagaContext[Any]) -> None:
    if context.id == "order-2":
        raise TimeoutError("the warehouse does not answer")


@saga.step
def charge(context: SagaContext[Any]) -> None:
    if context.id in ("order-1", "order-2", "order-3"):
        raise Refused("CARD_DECLINED", f"the bank declines {context.id}")


@saga.step
def ship(context: SagaContext[Any]) -> None:
    pass


class Shop:
    """A database with messages in every state, dead letters of three kinds, sagas, transactions, marks and keys."""

    def __init__(self, url: str, dead: int = 4) -> None:
        self.url = url
        with closing(Service(url)) as service:
            self.dead = self._dead(service, dead)
            self.sent = self._sent(service)
            self.waiting = service.commit(
                Message.new("reports.daily", {"day": 1}, deliver_at=datetime.now(UTC) + timedelta(hours=3))
            )[0]
            [self.pending] = service.commit(
                Message.new("orders.created", {"secret": SECRET}, key="k-1", type="OrderCreated")
            )
            self._sagas(service)
            self.in_doubt = self._transactions(service)
            self._received(service)
            service.beat("default")

    def _dead(self, service: Service, count: int) -> list[str]:
        letters = [
            Message.new(topic, {"secret": SECRET, "n": n}, key=f"{topic}-{n}", headers={"x-secret": SECRET})
            for topic in ERRORS
            for n in range(count)
        ]
        made = service.commit(*letters)
        self.held = service.commit(Message.new("payments.captured", {"n": 0}, key="payments.captured-0"))[0]
        asyncio.run(Relay(self.url, _refuse).run_once())
        return [str(one.id) for one in made]

    def _sent(self, service: Service) -> str:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-secret": SECRET}
        made = service.commit(
            *(Message.new("orders.created", {"secret": SECRET, "n": n}, headers=headers) for n in range(20))
        )
        asyncio.run(Relay(self.url, _accept).run_once())
        return str(made[0].id)

    def _sagas(self, service: Service) -> None:
        with service.engine.begin() as connection:
            for n in range(6):
                saga.start(connection, {"secret": SECRET}, id=f"order-{n}")
        asyncio.run(Relay(self.url, sagas=[saga]).run_once())

    def _transactions(self, service: Service) -> str:
        store = service._store
        log = TwoPhaseLog(store.names)
        made = []
        for n, seconds in enumerate((-300, -200, -100)):
            deadline = store.run(log.clock()) + seconds * 1000
            tx = transaction_id(deadline, f"{n:012x}")
            store.run(log.open(tx, {"shop": "", "bank": "pr1:0a0b0c0d:x:bank"}, deadline))
            made.append(tx)
        store.run(log.resolve_open(made[0], Decision.COMMIT))
        store.run(log.note_problem(made[0], "only a superuser may finish it"))
        store.run(log.resolve_open(made[1], Decision.COMMIT))
        return made[2]

    def _received(self, service: Service) -> None:
        with service.engine.begin() as connection:
            Inbox("billing").first_time(connection, "message-7")
        with service.engine.begin() as connection:
            Ledger().begin(connection, "key-7", "d" * 64, scope="shop")
            begun = Ledger().begin(connection, "key-8", "d" * 64)
            assert isinstance(begun, Run)
            Ledger().finish(connection, begun.entry, Response(201, (("x-secret", SECRET),), SECRET.encode()))


def _refuse(message: Message) -> dict[str, str]:
    if message.topic not in ERRORS:
        return {"status": "ok"}
    code, text = ERRORS[message.topic]
    n = str(message.key).rpartition("-")[2]
    return {"status": "error", "reason_code": code, "message": text.format(n=n)}


def _accept(message: Message) -> None:
    pass


def filled(url: str) -> Shop:
    """A shop, made in a thread: it runs event loops of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(Shop, url).result()
