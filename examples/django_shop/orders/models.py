"""Orders, each of which is announced when it is created, and bills."""

from django.db import models

from orders.events import OrderCreated
from postroom.django import publishes


@publishes(OrderCreated.of, on="created")
class Order(models.Model):
    """What somebody has ordered."""

    cents = models.IntegerField()

    def __str__(self) -> str:
        return f"order {self.pk}"


class Bill(models.Model):
    """What somebody has to pay."""

    order_id = models.BigIntegerField()
    cents = models.IntegerField()

    def __str__(self) -> str:
        return f"bill of order {self.order_id}"
