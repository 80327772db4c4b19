"""What `manage.py postroom consume` runs."""

from orders.events import OrderCreated
from orders.models import Bill
from postroom.django import Consumer

billing = Consumer("billing")


@billing.handler()
def bill(event: OrderCreated) -> None:
    """Bill an order. The bill commits with the mark that the event was handled."""
    Bill.objects.create(order_id=event.order_id, cents=event.cents)
