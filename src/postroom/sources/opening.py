"""Sources by the URLs of their brokers: the same URL serves a relay and a consumer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.sources.port import Source

_SOURCES = {
    "amqp": ("postroom.sources.rabbitmq", "RabbitSource"),
    "amqps": ("postroom.sources.rabbitmq", "RabbitSource"),
    "kafka": ("postroom.sources.kafka", "KafkaSource"),
    "kafka+ssl": ("postroom.sources.kafka", "KafkaSource"),
    "nats": ("postroom.sources.nats", "NatsSource"),
    "nats+tls": ("postroom.sources.nats", "NatsSource"),
    "redis": ("postroom.sources.redis", "RedisSource"),
    "rediss": ("postroom.sources.redis", "RedisSource"),
}
"""Where the source of a scheme is: loaded when it is asked for, since each needs a client library."""

_WEBHOOKS = (
    "{}: webhooks come to a web application by themselves: serve postroom.web.Receiver(consumer, secret=…) there, "
    "with a consumer that has no broker"
)
_NOT_CONSUMED = {
    "http": _WEBHOOKS,
    "https": _WEBHOOKS,
    "stdout": "{}: nothing can be received from standard output: it is for looking at what a relay sends",
    "python": "{}: a function is handed its messages by the relay itself: there is nothing to receive",
    "memory": "{}: is of one process: give the MemoryBroker itself, the one that the relay publishes to",
}
_KNOWN = "use amqp://host, kafka://host, nats://host or redis://host"


def open_source(url: str, consumer: str, topics: Sequence[str]) -> Source:
    """A source of these topics, for the consumer of this name. Asks no server yet.

    Raises `InvalidSetting` where the URL, an option or a topic is wrong or its broker cannot be received from,
    `DriverMissing` where the broker's client is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme in _NOT_CONSUMED:
        raise InvalidSetting(f"{_NOT_CONSUMED[scheme].format(scheme)}; {_KNOWN}")
    if scheme not in _SOURCES:
        raise InvalidSetting(f"{scheme}: is not a broker that Postroom can receive from: {_KNOWN}")
    module, kind = _SOURCES[scheme]
    source: Source = getattr(importlib.import_module(module), kind)(url, consumer, topics)
    return source
