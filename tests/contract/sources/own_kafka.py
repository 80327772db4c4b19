"""A mock Kafka cluster of a test's own, in its process: as patient with new members as Kafka is."""

from __future__ import annotations

import asyncio
import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING

import confluent_kafka

from tests.services.kafka_program import PRODUCER, library

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKAS_OWN_MS = 3000
LEAVE_GROUP = 13


class OwnKafka:
    def __init__(self, kafka: ctypes.CDLL, cluster: ctypes.c_void_p) -> None:
        self._kafka = kafka
        self._cluster = cluster
        self.places = kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode()
        self.url = f"kafka://{self.places}"

    def farewells(self) -> int:
        """How many members have left the group."""
        count = ctypes.c_size_t()
        asked = self._kafka.rd_kafka_mock_get_requests
        asked.restype = ctypes.POINTER(ctypes.c_void_p)
        requests = asked(self._cluster, ctypes.byref(count))
        kinds = [self._kafka.rd_kafka_mock_request_api_key(ctypes.c_void_p(requests[n])) for n in range(count.value)]
        self._kafka.rd_kafka_mock_request_destroy_array(requests, count)
        return kinds.count(LEAVE_GROUP)

    async def send(self, topic: str, *bodies: bytes, key: bytes | None = None, timestamp: int = 0) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.places})
        for body in bodies:
            producer.produce(topic, body, key=key, timestamp=timestamp)
        assert await asyncio.to_thread(producer.flush, 10) == 0


@contextmanager
def own_kafka(topic: str, delay_ms: int = KAFKAS_OWN_MS) -> Iterator[OwnKafka]:
    """A cluster with one topic, of one partition."""
    kafka = library()
    error = ctypes.create_string_buffer(512)
    handle = ctypes.c_void_p(kafka.rd_kafka_new(PRODUCER, ctypes.c_void_p(kafka.rd_kafka_conf_new()), error, 512))
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(handle, 1))
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, delay_ms)
    kafka.rd_kafka_mock_start_request_tracking(cluster)
    kafka.rd_kafka_mock_topic_create(cluster, topic.encode(), 1, 1)
    try:
        yield OwnKafka(kafka, cluster)
    finally:
        kafka.rd_kafka_mock_cluster_destroy(cluster)
        kafka.rd_kafka_destroy(handle)
