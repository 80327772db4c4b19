"""The scenario: a shop sells while its broker goes down, a relay is killed, a message is poison, a card declined."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from postroom import schema
from postroom.admin import Admin, State
from postroom.cli.demo.broker import Broker
from postroom.cli.demo.checkout import COMPLETED, EMPTY, GOOD, UNDONE, Checkout
from postroom.cli.demo.display import Display, Snapshot
from postroom.cli.demo.relay_processes import LEASE, DemoFailed, RelayProcesses
from postroom.cli.demo.shop import Billing, CardDeclined, Shop, connect
from postroom.cli.demo.workspace import database_url

STALLED = 60.0
"""Seconds without progress after which the demo has failed."""
POLL = 0.03
AT_ONCE = 100

TITLE = "Postroom: what a service commits, the world receives; and each effect happens once.\n"
INTRODUCTION = """\
A shop takes orders, and billing must hear of each one. If the shop saves the
order first and then tells the message broker, it may crash between the two: the
order is saved, but billing never hears of it. So the shop saves a message with
the order, in the same database transaction. The table of these messages is the
outbox. Relays deliver them to the broker, and billing remembers in its inbox
which ones it has seen. Now we break things.
"""


def play(directory: Path, orders: int, display: Display) -> dict[str, int]:
    """Run the scenario in the directory, and return the figures. No relay is left running, whatever is raised."""
    url = database_url(directory)
    schema.create(url)
    with Admin(url) as admin, closing(connect(directory)) as ours, RelayProcesses(directory) as relays, display:
        broker = Broker(directory)
        broker.create()
        shop, billing, checkout = Shop(ours), Billing(ours), Checkout(ours, directory)
        return Scenario(admin, shop, billing, checkout, broker, relays, display).run(orders)


class Scenario:
    """The shop, billing, the broker and the relays, and what happens to them."""

    def __init__(
        self,
        admin: Admin,
        shop: Shop,
        billing: Billing,
        checkout: Checkout,
        broker: Broker,
        relays: RelayProcesses,
        display: Display,
    ) -> None:
        self._admin = admin
        self._shop = shop
        self._billing = billing
        self._checkout = checkout
        self._broker = broker
        self._relays = relays
        self._display = display
        self._broker_is_up = True
        self._read_to = 0
        self._next = 1
        self._total = 0

    def run(self, orders: int) -> dict[str, int]:
        """From the first order to the last invoice."""
        self._total = orders
        third = max(1, orders // 3)
        self._display.tell(TITLE, "bold")
        self._display.tell(INTRODUCTION)
        self._relays.start("relay-1")
        self._relays.start("relay-2")
        self._sell(max(0, orders - 2 * third))
        self._lose_the_broker(min(third, orders - 1))
        self._kill_a_relay(third)
        self._set_poison_aside()
        self._undo_an_order()
        self._relays.stop()
        figures = self._figures()
        self._conclude(figures)
        return figures

    def _sell(self, orders: int) -> None:
        self._take(orders)
        self._tell(f"1. Orders come in; each is committed together with its message.\n   {self._stock()}.")
        try:
            self._shop.order(self._next, card_is_good=False)
        except CardDeclined:
            self._tell(
                f"   The next card is declined after order and message were written.\n   Rolled back: {self._stock()}."
            )
        if orders:
            self._shop.order(orders)
            self._tell(
                f"   A customer presses the button twice: the request comes again.\n   Recognised: {self._stock()}."
            )
        self._shop.poison()
        self._tell("   One of the messages is damaged: the broker will never take it.")
        self._until(self._all_billed, "all orders billed")
        self._tell(f"2. Two relays deliver, each in its own process.\n   {self._billed()}.")
        self._display.pause()

    def _lose_the_broker(self, orders: int) -> None:
        self._broker.go_down()
        self._broker_is_up = False
        self._take(orders)
        if orders:
            self._until(self._broker.has_refused, "a relay that finds the broker down")
        waiting = _counted(orders, "order")
        self._tell(f"3. The broker is down. The shop keeps selling; {waiting} wait in the outbox, and nothing is lost.")
        self._display.pause()
        self._broker.come_back()
        self._broker_is_up = True
        self._until(self._all_billed, "all orders billed after the broker came back")
        self._tell(f"   The broker is back, and the relays with it.\n   {self._billed()}.")
        self._display.pause()

    def _kill_a_relay(self, orders: int) -> None:
        self._broker.set_trap()
        self._take(orders)
        self._until(lambda: self._broker.trapped() is not None, "a relay in the trap")
        victim = str(self._broker.trapped())
        self._relays.kill(victim)
        self._tell(
            f"4. {victim} is killed (SIGKILL) right after the broker took messages from it,\n"
            "   and before it could record that: nobody knows that they were delivered.\n"
            f"   Its leases end after {LEASE} seconds; then {self._relays.names()[0]} delivers the messages again."
        )
        self._until(lambda: self._billing.skipped > 0 and self._all_settled(), "the other relay to take over")
        again = _counted(self._billing.skipped, "message")
        self._tell(
            f"   The broker got {again} twice; the inbox recognised them, billing skipped them.\n   {self._billed()}."
        )
        self._display.pause()

    def _set_poison_aside(self) -> None:
        for dead in self._admin.messages(status=State.DEAD):
            tries = f"was refused {_counted(dead.attempts, 'time')} ({dead.error_code})"
            self._tell(
                f"5. The damaged message to {dead.topic} {tries}.\n"
                "   It is now a dead letter, for a person to look at. It held up nothing else."
            )

    def _undo_an_order(self) -> None:
        """Run two sagas: one that fails in the middle, and one that does not."""
        checkout, before = self._checkout, self._checkout.stock()
        for order in (EMPTY, GOOD):
            checkout.begin(order)
        self._until(lambda: checkout.ended(UNDONE) == checkout.ended(COMPLETED) == 1, "the end of two sagas")
        self._tell(
            "6. Some orders take several steps: reserve the stock, charge the card, send the parcel. The card\n"
            "   is charged elsewhere, so no transaction can roll it all back. A saga does the steps one by one,\n"
            f"   and if one fails, undoes those before it. {_counted(before, 'piece')} in stock.\n"
            f"   order {EMPTY}: {checkout.story(EMPTY)}.\n"
            f"   order {GOOD}: {checkout.story(GOOD)}.\n"
            f"   {_counted(checkout.stock(), 'piece')} in stock: one was sold, and none is lost."
        )
        self._display.pause()

    def _take(self, orders: int) -> None:
        for count in range(1, orders + 1):
            self._shop.order(self._next)
            self._next += 1
            if count % AT_ONCE == 0:
                self._work()

    def _work(self) -> bool:
        """Let billing receive what is there, and show how things stand; returns whether anything was received."""
        received = self._broker.received(self._read_to)
        for one in received:
            self._billing.receive(one)
            self._read_to = one.offset
        found = self._admin.status()
        self._display.show(
            Snapshot(
                total=self._total,
                orders=self._shop.orders(),
                waiting=found.pending + found.sending + found.waiting,
                delivered=self._broker.orders(),
                billed=self._billing.invoices(),
                skipped=self._billing.skipped,
                dead=found.dead,
                relays=self._relays.names(),
                broker_is_up=self._broker_is_up,
            )
        )
        return bool(received)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STALLED
        while not condition():
            self._relays.check()
            if self._work():
                deadline = time.monotonic() + STALLED
            if time.monotonic() > deadline:
                raise DemoFailed(f"nothing has happened for {STALLED:g} seconds; still missing: {what}")
            time.sleep(POLL)
        self._work()

    def _all_billed(self) -> bool:
        return self._billing.not_billed() == 0

    def _all_settled(self) -> bool:
        found = self._admin.status()
        return found.pending == found.sending == found.waiting == 0

    def _stock(self) -> str:
        return f"{_counted(self._shop.orders(), 'order')}, {_counted(self._shop.messages(), 'message')}"

    def _billed(self) -> str:
        return f"{_counted(self._shop.orders(), 'order')}, {_counted(self._billing.invoices(), 'invoice')}"

    def _tell(self, text: str) -> None:
        self._display.tell(text)

    def _figures(self) -> dict[str, int]:
        self._work()
        found = self._admin.status()
        return {
            "committed": self._shop.orders(),
            "delivered": self._broker.orders(),
            "effects": self._billing.invoices(),
            "duplicates": self._billing.skipped,
            "dead": found.dead,
            "lost": self._billing.not_billed(),
            "billed_twice": self._billing.billed_twice(),
            "pending": found.pending,
            "sagas_completed": self._checkout.ended(COMPLETED),
            "sagas_undone": self._checkout.ended(UNDONE),
            "stock_missing": self._checkout.missing(),
        }

    def _conclude(self, figures: dict[str, int]) -> None:
        rows = [
            ("committed", figures["committed"], "orders in the shop's database"),
            ("delivered", figures["delivered"], "of them are at the broker"),
            ("effects", figures["effects"], "invoices that billing has written"),
            ("duplicates", figures["duplicates"], "deliveries that came again; the inbox skipped them"),
            ("dead", figures["dead"], "messages set aside"),
            ("lost", figures["lost"], "orders that were never billed"),
            ("billed twice", figures["billed_twice"], "orders with a second invoice"),
            ("sagas undone", figures["sagas_undone"], "orders whose card was declined; their stock was given back"),
        ]
        self._display.tell("")
        self._display.conclude(
            rows,
            "{committed:,} committed, {delivered:,} delivered, effects {effects:,}, {lost:,} lost, "
            "{billed_twice:,} billed twice, duplicates skipped {duplicates:,}, dead {dead:,}.".format(**figures),
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
