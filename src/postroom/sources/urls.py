"""Open a source by its broker's URL: the same URL serves a relay and a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.schemes import CLIENTS, load
from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.sources.port import Source

_WEBHOOKS = (
    "{}: webhooks are pushed to a web application: serve postroom.web.Receiver(consumer, secret=…) there, "
    "with a consumer that has no broker"
)
_NOT_RECEIVABLE = {
    "http": _WEBHOOKS,
    "https": _WEBHOOKS,
    "stdout": "{}: nothing can be received from standard output: it is for looking at what a relay sends",
    "python": "{}: the relay itself calls the function: there is nothing to receive",
    "memory": "{}: exists in one process only: give the MemoryBroker that the relay publishes to",
}
_KNOWN = "use amqp://host, kafka://host, nats://host or redis://host"


def open_source(url: str, consumer: str, topics: Sequence[str]) -> Source:
    """Open a source of these topics for the consumer of this name. Does not contact any server yet.

    Raises `InvalidSetting` if the URL, an option or a topic is wrong, or nothing can be received from its broker;
    `DriverMissing` if the broker's client is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme in _NOT_RECEIVABLE:
        raise InvalidSetting(f"{_NOT_RECEIVABLE[scheme].format(scheme)}; {_KNOWN}")
    client = CLIENTS.get(scheme)
    if client is None or client.source is None:
        raise InvalidSetting(f"{scheme}: is not a broker that Postroom can receive from: {_KNOWN}")
    source: Source = load(client.source)(url, consumer, topics)
    return source
