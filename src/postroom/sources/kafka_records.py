"""Kafka records as received messages."""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from postroom.brokers.cloudevents import KAFKA, incoming
from postroom.rules.naming import ALL_HEADERS
from postroom.sources.port import Received
from postroom.sources.reading import fingerprint, key_of, text, undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.sources.kafka_partitions import Partition

_headers = methodcaller("headers")
"""The headers of a record. Not called as a method: for a name that is not UTF-8 the client returns a broken list along
with its error. Python notices that when C calls, but not in specialised bytecode, where the process would crash."""


def received_from(partition: Partition, record: Any) -> Received:
    """Decode a record."""
    topic, offset, body = partition.topic, record.offset(), record.value()
    key = None if record.key() is None else key_of(_bytes(record.key()))
    try:
        # An attribute without a value is not set: Debezium sends such for columns that are NULL.
        headers = [
            (name, _bytes(value))
            for name, value in _headers(record) or ()
            if value is not None or not (KAFKA.is_reserved(name) or name == ALL_HEADERS)
        ]
        id = partial(_place, record, headers)  # noqa: A001 - its name everywhere
        message = incoming(KAFKA, {name: text(value) for name, value in headers}, body, id=id, topic=topic, key=key)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this record is at fault
        cause = error.__cause__ or error
        raw = cause.object if isinstance(cause, UnicodeDecodeError) else None  # the bad name; the client drops the rest
        message = undecodable(topic, body, cause, id=_place(record, ()), key=key, headers=raw)
    return Received(message, (partition, offset, partition.rewinds))


def _place(record: Any, headers: Iterable[tuple[str, bytes]]) -> str:
    """Place, time and content of the record: a topic that is created again reuses the same offsets."""
    _, moment = record.timestamp()
    parts = (record.key(), record.value(), *(part for header in headers for part in header))
    return f"{record.topic()}/{record.partition()}/{record.offset()}:{moment}:{fingerprint(parts)}"


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""
