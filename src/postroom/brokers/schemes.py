"""URL schemes: which publisher, source and inspector serve each kind of broker.

They are imported on first use, because each needs a client library.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Client(NamedTuple):
    """Where a broker's publisher, inspector and source are defined, as ``module:class``."""

    publisher: str
    inspector: str
    source: str | None = None


_KAFKA = Client(
    "postroom.brokers.kafka:KafkaBroker",
    "postroom.brokers.inspection.kafka:KafkaInspector",
    "postroom.sources.kafka:KafkaSource",
)
_NATS = Client(
    "postroom.brokers.nats:NatsBroker",
    "postroom.brokers.inspection.nats:NatsInspector",
    "postroom.sources.nats:NatsSource",
)
_RABBITMQ = Client(
    "postroom.brokers.rabbitmq:RabbitBroker",
    "postroom.brokers.inspection.rabbitmq:RabbitInspector",
    "postroom.sources.rabbitmq:RabbitSource",
)
_REDIS = Client(
    "postroom.brokers.redis:RedisBroker",
    "postroom.brokers.inspection.redis:RedisInspector",
    "postroom.sources.redis:RedisSource",
)
_WEBHOOK = Client("postroom.brokers.http:HttpBroker", "postroom.brokers.inspection.http:HttpInspector")
CLIENTS = {
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "http": _WEBHOOK,
    "https": _WEBHOOK,
    "kafka": _KAFKA,
    "kafka+ssl": _KAFKA,
    "nats": _NATS,
    "nats+tls": _NATS,
    "redis": _REDIS,
    "rediss": _REDIS,
}
BRIDGES = {
    "celery": "postroom.brokers.celery:CeleryBroker",
    "dramatiq": "postroom.brokers.dramatiq:DramatiqBroker",
    "faststream": "postroom.brokers.faststream:FastStreamBroker",
    "taskiq": "postroom.brokers.taskiq:TaskiqBroker",
}
"""Task queues and frameworks with brokers of their own: ``celery://module:app`` is the publisher for that app."""


def load(place: str) -> Any:
    """Import the class at ``module:class``. Raises `DriverMissing` if its client library is not installed."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
