"""A consumer to try the compose file with: it handles each order once, and announces that it did."""

from typing import Any

from postroom import Consumer, Outbox
from postroom.telemetry.metrics import prometheus

outbox = Outbox(hook=prometheus())  # counts what is added, beside the consumer's own metrics
consumer = Consumer("billing")


@consumer.handler("orders.created")
def bill(connection: Any, message: Any) -> None:
    """Runs in one transaction with the inbox mark and the new message."""
    outbox.add(connection, "orders.billed", message.json(), key=message.key)
