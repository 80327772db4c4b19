"""The scenario: orders come in, every step fails for some of them, and in the end the books are right."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from sqlalchemy import Engine, create_engine, make_url, text

from examples.choreography.books import Books
from examples.choreography.run import some_orders
from examples.orders.processes import free_port
from examples.saga import inventory, orders, payments
from examples.shutdown import call, signals_deferred, start
from examples.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from examples.shutdown import Process

ROOT = Path(__file__).parents[2]
CALLED = (payments.SERVICE, inventory.SERVICE)
EVERY_FIFTH = 5
FAST = {"OUTBOX_POLL_INTERVAL_SEC": "0.05", "OUTBOX_LOCK_LEASE_SEC": "5", "POSTROOM_LOG_LEVEL": "error"}
"""To make the example quick; a real service keeps the defaults."""


class Shop:
    """The databases of three services."""

    def __init__(self, directory: Path, database: str | None) -> None:
        names = ("orders", *(one.name for one in CALLED))
        self.databases = {name: database or f"sqlite:///{directory / name}.db" for name in names}
        with signals_deferred():
            for url in {*self.databases.values()}:
                call([sys.executable, "-m", "postroom", "init", "--database", url])
            for service in CALLED:
                create(self.databases[service.name], service.tables)
            create(self.databases["orders"], orders.TABLES)
        self._before = self.books()

    def books(self) -> Books:
        """The current contents of the databases."""
        return Books.read(self.databases)

    def place(self, wishes: Iterable[orders.Order]) -> None:
        """Place orders, each in a transaction of its own. Every fifth customer withdraws at once."""
        with opened(self.databases["orders"]) as engine:
            for wish in wishes:
                with engine.begin() as connection:
                    orders.place(connection, wish, withdrawn=int(wish.order) % EVERY_FIFTH == 0)

    def ended(self) -> int:
        """How many orders have ended."""
        books = self.books()
        return len(books.orders) - books.open

    def close_the_books(self, count: int) -> int:
        """Print the orders and check them; returns the exit code."""
        books = self.books()
        print(f"\n{books.table()}\n")
        violations = books.violations(self._before)
        if len(books.orders) != count:
            violations.append(f"{count} orders were placed, {len(books.orders)} are in the books")
        for one in violations:
            print(f"WRONG: {one}")
        if violations:
            return 1
        counts = ", ".join(f"{found} {status}" for status, found in sorted(books.counts().items()))
        print(f"{counts}. Every order came to one end; no money and no goods were made or lost.")
        return 0


def play(directory: Path, database: str | None, count: int) -> int:
    """Run two services and two workers of the saga as processes, and kill a worker in the middle of its work."""
    shop = Shop(directory, database)
    wishes = [orders.Order(one.order, one.customer, one.amount, one.items) for one in some_orders(count)]
    with ExitStack() as stack:
        urls = {one.name: f"http://127.0.0.1:{free_port()}" for one in CALLED}
        for name, url in urls.items():
            port = str(make_url(url).port)
            command = [sys.executable, "-m", "examples.saga.serve", name, shop.databases[name], port]
            start(stack, command, cwd=ROOT)
        wait_until(lambda: all(map(answers, urls.values())), "the services answer")
        first = worker(stack, shop, urls)
        worker(stack, shop, urls)
        print("Payments and inventory are at work, and two workers run the saga that directs them.")
        shop.place(wishes[: count // 2])
        print(f"{count // 2} orders are placed …")
        wait_until(lambda: shop.ended() >= min(3, count // 4), "orders come to an end")
        first.send_signal(signal.SIGKILL)
        first.wait()
        print("… a worker is killed (SIGKILL) in the middle of its work …")
        shop.place(wishes[count // 2 :])
        print(f"… {count - count // 2} more orders are placed; the other worker carries on where the first stopped.")
        wait_until(lambda: shop.ended() == count, "all orders come to an end")
        wrong = shop.close_the_books(count)
        undone = next((row[0] for row in shop.books().orders if row[-1] == "withdrawn"), None)
        if undone is not None:
            print(f"\nHow order {undone} was undone (postroom sagas show place_order {undone}):\n", flush=True)
            show(shop, undone)
    return wrong


def worker(stack: ExitStack, shop: Shop, urls: Mapping[str, str]) -> Process:
    """A relay that runs the saga, as a service would start it."""
    command = [sys.executable, "-m", "postroom", "relay", "--app", "examples.saga.orders:place_order"]
    environment = {f"{name.upper()}_URL": url for name, url in urls.items()}
    command += ["--database", shop.databases["orders"]]
    return start(stack, command, cwd=ROOT, env={**os.environ, **FAST, **environment})


def show(shop: Shop, order: str) -> None:
    """Print what an operator sees of a saga."""
    with ExitStack() as stack:
        command = [sys.executable, "-m", "postroom", "sagas", "show", "place_order", order]
        start(stack, [*command, "--database", shop.databases["orders"]], cwd=ROOT).wait()


def answers(url: str) -> bool:
    """Whether a service answers."""
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        time.sleep(0.05)
        return False


def create(database: str, tables: Iterable[str]) -> None:
    """Create a service's own tables."""
    with opened(database) as engine, engine.begin() as connection:
        for statement in tables:
            connection.execute(text(statement))


@contextmanager
def opened(database: str) -> Iterator[Engine]:
    """Connect to a database. SQLite has one writer at a time: wait for it."""
    engine = create_engine(database, connect_args={"timeout": 30} if database.startswith("sqlite") else {})
    yield engine
    engine.dispose()
