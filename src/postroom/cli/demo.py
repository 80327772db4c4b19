"""``postroom demo``: Postroom at work, for someone who has never heard of an outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import databases, messages, status
from postroom.cli.options import Json
from postroom.cli.output import print_json, print_text

if TYPE_CHECKING:
    from postroom.cli.shop import Shop
    from postroom.store.stores import BlockingStore

LISTED = 10

INTRODUCTION = """\
A shop takes orders, and billing, stock and mail must hear of each one. To
save the order and then tell the message broker goes wrong when the program
dies between the two: the order is there, and nobody ever hears of it. So the
shop writes a message beside the order, in the same database transaction. The
table of such messages is called an outbox.
"""
END = """
Nothing has been sent yet. That is the task of the relay, which takes messages
from the outbox to the broker, and which is the next part of Postroom to be
built. Until then the messages wait here, as safe as the orders.
"""

Tell = Callable[[str], None]


def demo(
    orders: Annotated[int, typer.Option("--messages", min=1, max=1_000_000, help="How many orders.")] = 5,
    as_json: Json = False,
) -> None:
    """Show Postroom at work, on SQLite in a temporary directory. Touches no database of yours."""
    from postroom.cli import shop
    from postroom.store.migrations import upgrade

    with shop.premises() as settings, databases.opened(settings, create=True) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        with shop.opened(settings) as open_shop:
            if as_json:
                _trade(open_shop, orders, tell=_silently)
                print_json(_figures(open_shop, store))
            else:
                print_text("Postroom: what a service commits, the world receives.\n", style="bold")
                print_text(INTRODUCTION)
                _trade(open_shop, orders, tell=print_text)
                _conclude(open_shop, store)


def _silently(_text: str) -> None:
    """Tell nobody: only the figures are wanted."""


def _trade(shop: Shop, orders: int, tell: Tell) -> None:
    """Orders that go well, one that does not, and one that comes twice."""
    from postroom.cli.shop import CardDeclined

    for number in range(1, orders + 1):
        shop.order(number)
    tell(f"1. Orders come in; each is committed together with its message.\n   {_stock(shop)}.")
    try:
        shop.order(orders + 1, card_is_good=False)
    except CardDeclined:
        tell(f"2. With the next order and its message written, the card is declined.\n   Rolled back: {_stock(shop)}.")
    shop.order(orders)
    tell(f"3. A customer presses the button twice: the same idempotency key again.\n   Recognised: {_stock(shop)}.")


def _stock(shop: Shop) -> str:
    return f"{_counted(shop.orders(), 'order')}, {_counted(shop.messages(), 'message')}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _figures(shop: Shop, store: BlockingStore) -> dict[str, int]:
    found = status.read(store)
    return {
        "committed": shop.orders(),
        "delivered": found.sent,
        "effects": 0,  # nobody receives yet
        "duplicates": shop.doubled(),
        "dead": found.dead,
        "lost": shop.lost(),
        "pending": found.pending,
    }


def _conclude(shop: Shop, store: BlockingStore) -> None:
    print_text("\nThe newest messages in the outbox (postroom messages list):\n", style="bold")
    messages.show(messages.read(store, limit=LISTED))
    print_text("\nHow many there are of each kind (postroom status):\n", style="bold")
    status.show(status.read(store))
    print_text(END)
    figures = _figures(shop, store)
    committed = _counted(figures["committed"], "order")
    print_text(f"{committed} committed, {figures['lost']} without a message, {figures['duplicates']} with two.", "bold")
