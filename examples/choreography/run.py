"""The scenario: orders come in, something breaks, and in the end the books are right."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine

from examples.choreography import inventory, orders, payments
from examples.choreography.books import Books
from examples.choreography.events import SUBJECTS, OrderCreated
from examples.choreography.nats_server import nats_server
from examples.shutdown import signals_deferred, start
from examples.waiting import wait_until
from postroom.brokers.memory import MemoryBroker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from examples.shutdown import PendingSignal, Process

SERVICES = (orders.SERVICE, payments.SERVICE, inventory.SERVICE)
ROOT = Path(__file__).parents[2]
PRICES = {"kettle": 30, "lamp": 20, "chair": 80}


class Shop:
    """Three services with a database each, below one directory."""

    def __init__(self, directory: Path) -> None:
        self.databases = {one.name: f"sqlite:///{directory / one.name}.db" for one in SERVICES}
        with signals_deferred(), ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.set_up(self.databases[one.name]), SERVICES))
        self._before = self.books()

    def books(self) -> Books:
        """The current contents of the three databases."""
        return Books.read(self.databases)

    def place(self, wishes: Iterable[OrderCreated]) -> None:
        """Place orders, each in a transaction of its own."""
        engine = create_engine(self.databases["orders"], connect_args={"timeout": 30})
        for wish in wishes:
            with engine.begin() as connection:
                orders.place(connection, wish)
        engine.dispose()

    def is_settled(self) -> bool:
        """Whether every order has ended."""
        return not self.books().open

    def close_the_books(self) -> int:
        """Print the orders and check them; returns the exit code."""
        books = self.books()
        print(f"\n{books.table()}\n")
        violations = books.violations(self._before)
        for one in violations:
            print(f"WRONG: {one}")
        if violations:
            return 1
        counts = ", ".join(f"{count} {status}" for status, count in sorted(books.counts().items()))
        print(f"{counts}. Every order came to one end; no money and no goods were made or lost.")
        return 0


def some_orders(count: int) -> list[OrderCreated]:
    """Always the same orders. Some customers cannot pay for everything, and there are not enough chairs."""
    chance = random.Random(7)  # noqa: S311 - repeatable, not secret
    found = []
    for number in range(1, count + 1):
        items = {item: chance.randint(1, 2) for item in chance.sample(sorted(PRICES), chance.randint(1, 2))}
        amount = sum(PRICES[item] * quantity for item, quantity in items.items())
        customer = chance.choice(["Ada", "Ben", "Cleo", "Dan"])
        found.append(OrderCreated(order=f"{number:03}", customer=customer, amount=amount, items=items))
    return found


def on_nats(directory: Path, count: int) -> int:
    """Run each service in a process of its own, and kill one of them in the middle of its work."""
    shop = Shop(directory)
    wishes = some_orders(count)
    with ExitStack() as stack:
        url = stack.enter_context(nats_server(directory))
        broker = f"{url}?declare=true&stream=shop&subjects={SUBJECTS}&ack_wait=1"

        def begin(name: str) -> Process:
            command = [sys.executable, "-m", "examples.choreography.service", name, shop.databases[name], broker]
            return start(stack, command, cwd=ROOT)

        print(f"Three services are at work, on NATS at {url}.")
        running = {service.name: begin(service.name) for service in SERVICES}
        shop.place(wishes[: count // 2])
        print(f"{count // 2} orders are placed …")
        wait_until(lambda: len(shop.books().payments) >= min(5, count // 4), "payments are made")

        running["payments"].send_signal(signal.SIGKILL)
        running["payments"].wait()
        print("… payments is killed (SIGKILL) in the middle of its work …")
        shop.place(wishes[count // 2 :])
        print(f"… {count - count // 2} more orders are placed, since orders does not need it for that …")
        begin("payments")
        print("… payments is started again.")
        wait_until(shop.is_settled, "all orders come to an end")
    return shop.close_the_books()


def in_memory(directory: Path, count: int) -> int:
    """Run all three services in this process, with a broker in memory."""
    shop = Shop(directory)
    with signals_deferred() as pending:
        asyncio.run(_in_memory(shop, some_orders(count), pending))
    return shop.close_the_books()


async def _in_memory(shop: Shop, wishes: list[OrderCreated], pending: PendingSignal) -> None:
    broker = MemoryBroker()
    async with AsyncExitStack() as stack:
        for service in SERVICES:
            await stack.enter_async_context(service.at_work(shop.databases[service.name], broker))
        print("Three services are at work, in memory.")
        await asyncio.to_thread(shop.place, wishes)
        print(f"{len(wishes)} orders are placed.")
        await asyncio.to_thread(wait_until, lambda: pending.signal or shop.is_settled(), "all orders come to an end")
