"""Look at Kafka: are the topics there, and how many replicas have a message before it counts as sent."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from postroom.brokers import kafka as publisher  # first: it says which extra is missing
from postroom.brokers import urls
from postroom.brokers.inspection.port import Inspector
from postroom.brokers.kafka_producer import client_log
from postroom.errors import BrokerUnavailable
from postroom.rules.checks.brokers import BrokerFacts, Place

# isort: split
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its own documentation imports them from here
    AdminClient,
    ConfigResource,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OF_PRODUCERS = frozenset({"acks", "enable.idempotence", "partitioner", "linger.ms", "message.max.bytes"})
INSYNC, LARGEST = "min.insync.replicas", "max.message.bytes"
METADATA_SHARE = 0.6
"""The share of the time for finding the cluster; the rest is for the topics' settings."""


class KafkaInspector(Inspector):
    """Asks an admin client for metadata and topic settings."""

    def __init__(self, url: str) -> None:
        self._broker = publisher.KafkaBroker(url)
        super().__init__(*urls.parse(url, publisher.PORTS, publisher.KafkaOptions))

    async def facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:  # noqa: ASYNC109 - the port's
        """As the port says."""
        return await asyncio.to_thread(self._facts, topics, timeout)

    def _facts(self, topics: Sequence[str], timeout: float) -> BrokerFacts:
        settings = {name: value for name, value in self._broker.settings().items() if name not in _OF_PRODUCERS}
        client = AdminClient(settings, logger=client_log)
        began = time.monotonic()
        try:
            cluster = client.list_topics(timeout=timeout * METADATA_SHARE)
        except KafkaException as error:
            raise BrokerUnavailable(f"{self.name}: {error.args[0].str()}") from None
        seconds = time.monotonic() - began
        there = [topic for topic in topics if topic in cluster.topics]
        configs = _configs(client, there, timeout * (1 - METADATA_SHARE))
        return BrokerFacts(
            seconds=seconds,
            version=f"Kafka, {len(cluster.brokers)} brokers",
            places=[_place(topic, cluster.topics.get(topic), configs.get(topic, {})) for topic in topics],
            max_bytes=self._broker.options.max_bytes,
            limit_name="max_bytes in the broker's URL",
        )


def _configs(client: AdminClient, topics: Sequence[str], timeout: float) -> dict[str, Mapping[str, str]]:
    """The settings of topics, as far as they can be read."""
    if not topics:
        return {}
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, one) for one in topics], request_timeout=timeout
    )
    found: dict[str, Mapping[str, str]] = {}
    for resource, future in asked.items():
        try:
            entries = future.result(timeout)
        except (KafkaException, TimeoutError):
            continue
        found[resource.name] = {name: entry.value for name, entry in entries.items()}
    return found


def _place(topic: str, metadata: Any, config: Mapping[str, str]) -> Place:
    if metadata is None or not metadata.partitions:
        return Place(topic, missing="there is no such topic")
    insync, largest = config.get(INSYNC), config.get(LARGEST)
    return Place(
        topic,
        unknown="" if insync else f"its {INSYNC} cannot be read",
        replicas=min(len(partition.replicas) for partition in metadata.partitions.values()),
        min_insync=int(insync) if insync else None,
        max_bytes=int(largest) if largest else None,
    )
