"""Kafka's partitions and records, as a source has them."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicPartition

from postroom.brokers.cloudevents import KAFKA, incoming
from postroom.sources.offsets import Offsets
from postroom.sources.port import Received
from postroom.sources.reading import fingerprint, key_of, text, undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable

_headers = methodcaller("headers")
"""Of a record. Not called as a method: where a name is not UTF-8, the client returns a broken list beside its error,
which Python notices when C calls, and not in the code that it makes of a hot loop: there the process would die."""


class Partition:
    """One partition, for as long as it is assigned to us."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.offsets = Offsets()
        self.committed: int | None = None
        self.back_to: int | None = None
        """Where to read on; what is polled before that is done is dropped."""
        self.at_end = False
        """Whether all that the partition has was polled."""
        self.turn = 0
        """How often it was put back: what was received in an earlier turn cannot be given back any more."""

    def put_back(self, offset: int) -> None:
        """Read again from this offset."""
        self.offsets.rewind(offset)
        self.back_to = offset if self.back_to is None else min(offset, self.back_to)
        self.turn += 1
        self.at_end = False

    def to_commit(self) -> TopicPartition | None:
        """How far it is done, where that has not been committed."""
        reached = self.offsets.reached
        if reached is None or reached == self.committed:
            return None
        return TopicPartition(self.topic, self.number, reached)


def received(partition: Partition, record: Any) -> Received:
    """A record as a message."""
    topic, offset, body = partition.topic, record.offset(), record.value()
    key = None if record.key() is None else key_of(_bytes(record.key()))
    try:
        headers = [(name, _bytes(value)) for name, value in _headers(record) or ()]
        id = partial(_place, record, headers)  # noqa: A001 - what it is called everywhere
        message = incoming(KAFKA, {name: text(value) for name, value in headers}, body, id=id, topic=topic, key=key)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this record's fault alone
        cause = error.__cause__ or error
        raw = cause.object if isinstance(cause, UnicodeDecodeError) else None  # the one name; the client drops the rest
        message = undecodable(topic, body, cause, id=_place(record, ()), key=key, headers=raw)
    return Received(message, (partition, offset, partition.turn))


def _place(record: Any, headers: Iterable[tuple[str, bytes]]) -> str:
    """Where it is, since when, and what it is: a topic that is made anew gives out the same offsets again."""
    _, moment = record.timestamp()
    parts = (record.key(), record.value(), *(part for header in headers for part in header))
    return f"{record.topic()}/{record.partition()}/{record.offset()}:{moment}:{fingerprint(parts)}"


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
