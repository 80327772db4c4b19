"""The story: a shop sells while its broker goes down, a relay is killed and a message is poison."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from postroom import schema
from postroom.admin import Admin, State
from postroom.cli.demo.broker import Broker
from postroom.cli.demo.fleet import LEASE, DemoFailed, Fleet
from postroom.cli.demo.premises import database_url
from postroom.cli.demo.shop import Billing, CardDeclined, Shop, connect
from postroom.cli.demo.stage import Scene, Stage

PATIENCE = 60.0
"""Seconds without any progress after which the demo has failed."""
LOOK = 0.03
AT_ONCE = 100

TITLE = "Postroom: what a service commits, the world receives; and each effect happens once.\n"
INTRODUCTION = """\
A shop takes orders, and billing must hear of each one. To save the order and
then tell the message broker goes wrong when the program dies between the two:
the order is there, and nobody ever hears of it. So the shop writes a message
beside the order, in the same database transaction. The table of such messages
is called an outbox. Relays take them from there to the broker, and billing
notes in an inbox which it has seen. Now we break things.
"""


def play(directory: Path, orders: int, stage: Stage) -> dict[str, int]:
    """Play it in the directory, and return the figures. Afterwards no relay runs, whatever is raised."""
    url = database_url(directory)
    schema.create(url)
    with Admin(url) as admin, closing(connect(directory)) as ours, Fleet(directory) as fleet, stage:
        broker = Broker(directory)
        broker.create()
        return Story(admin, Shop(ours), Billing(ours), broker, fleet, stage).run(orders)


class Story:
    """Everybody who takes part, and what happens to them."""

    def __init__(self, admin: Admin, shop: Shop, billing: Billing, broker: Broker, fleet: Fleet, stage: Stage) -> None:
        self._admin = admin
        self._shop = shop
        self._billing = billing
        self._broker = broker
        self._fleet = fleet
        self._stage = stage
        self._broker_is_up = True
        self._read_to = 0
        self._next = 1
        self._total = 0

    def run(self, orders: int) -> dict[str, int]:
        """From the first order to the last invoice."""
        self._total = orders
        third = max(1, orders // 3)
        self._stage.tell(TITLE, "bold")
        self._stage.tell(INTRODUCTION)
        self._fleet.start("relay-1")
        self._fleet.start("relay-2")
        self._sell(max(0, orders - 2 * third))
        self._lose_the_broker(min(third, orders - 1))
        self._kill_a_relay(third)
        self._set_poison_aside()
        self._fleet.stop()
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
                f"   The next card is declined, with order and message written.\n   Rolled back: {self._stock()}."
            )
        if orders:
            self._shop.order(orders)
            self._tell(f"   A customer presses the button twice: the same request again.\n   Known: {self._stock()}.")
        self._shop.poison()
        self._tell("   Among the messages is one that is damaged: no broker will ever take it.")
        self._until(self._all_billed, "all orders billed")
        self._tell(f"2. Two relays, processes of their own, deliver.\n   {self._billed()}.")
        self._stage.pause()

    def _lose_the_broker(self, orders: int) -> None:
        self._broker.go_down()
        self._broker_is_up = False
        self._take(orders)
        if orders:
            self._until(self._broker.has_refused, "a relay that finds the broker down")
        waiting = _counted(orders, "order")
        self._tell(f"3. The broker is down. The shop sells on; {waiting} wait in the outbox, and nothing is lost.")
        self._stage.pause()
        self._broker.come_back()
        self._broker_is_up = True
        self._until(self._all_billed, "all orders billed after the broker came back")
        self._tell(f"   The broker is back, and the relays with it.\n   {self._billed()}.")
        self._stage.pause()

    def _kill_a_relay(self, orders: int) -> None:
        self._broker.set_trap()
        self._take(orders)
        self._until(lambda: self._broker.trapped() is not None, "a relay in the trap")
        victim = str(self._broker.trapped())
        self._fleet.kill(victim)
        self._tell(
            f"4. {victim} is killed (SIGKILL) when the broker has just taken messages from it,\n"
            "   and before it could note that: nobody knows that they were delivered.\n"
            f"   What it held is leased for {LEASE} seconds; then {self._fleet.names()[0]} delivers it, again."
        )
        self._until(lambda: self._billing.skipped > 0 and self._all_settled(), "the other relay to take over")
        again = _counted(self._billing.skipped, "message")
        self._tell(
            f"   The broker got {again} twice; the inbox knew, and billing skipped the second.\n   {self._billed()}."
        )
        self._stage.pause()

    def _set_poison_aside(self) -> None:
        for dead in self._admin.messages(status=State.DEAD):
            tries = f"was refused {_counted(dead.attempts, 'time')} ({dead.error_code})"
            self._tell(
                f"5. The damaged message to {dead.topic} {tries}.\n"
                "   It is set aside as a dead letter, for a person to look at; it held up nobody."
            )

    def _take(self, orders: int) -> None:
        for count in range(1, orders + 1):
            self._shop.order(self._next)
            self._next += 1
            if count % AT_ONCE == 0:
                self._work()

    def _work(self) -> bool:
        """Billing receives what is there, and everybody sees how things stand; returns whether there was anything."""
        received = self._broker.received(self._read_to)
        for one in received:
            self._billing.receive(one)
            self._read_to = one.offset
        found = self._admin.status()
        self._stage.show(
            Scene(
                total=self._total,
                orders=self._shop.orders(),
                waiting=found.pending + found.sending + found.waiting,
                delivered=self._broker.orders(),
                billed=self._billing.invoices(),
                skipped=self._billing.skipped,
                dead=found.dead,
                relays=self._fleet.names(),
                broker_is_up=self._broker_is_up,
            )
        )
        return bool(received)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self._fleet.check()
            if self._work():
                deadline = time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                raise DemoFailed(f"for {PATIENCE:g} seconds nothing has happened; what was missing: {what}")
            time.sleep(LOOK)
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
        self._stage.tell(text)

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
        ]
        self._stage.tell("")
        self._stage.conclude(
            rows,
            "{committed:,} committed, {delivered:,} delivered, effects {effects:,}, {lost:,} lost, "
            "{billed_twice:,} billed twice, duplicates skipped {duplicates:,}, dead {dead:,}.".format(**figures),
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
