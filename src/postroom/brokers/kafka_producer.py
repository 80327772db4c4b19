"""A Kafka producer whose reports are taken by the event loop.

The client calls back from whoever polls it. A polling thread would hand the interpreter back and forth with the event
loop for every message; here the loop itself polls, often while reports are coming and seldom while they are not.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from postroom.brokers.port import NOT_SENT, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import too_large, unsendable
from postroom.rules.failures import Failure, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from postroom.brokers.batch import Batch

POLL_SOON = 0.001
"""Seconds from a batch, or from a report, to the next poll."""
POLL_SELDOM = 0.1
"""The most seconds between two polls."""
POLL_GROWTH = 1.25
"""How much longer each poll waits than the one before, while no reports come."""
_TOPIC_ERRORS = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's public name for it, as all with an underscore
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
_CONNECTION_LOST = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL})  # noqa: SLF001 - as above
_CLUSTER_ERRORS = _CONNECTION_LOST | {
    KafkaError._TRANSPORT,  # noqa: SLF001 - as above
    KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
    KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - as above
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
TOO_LARGE = Refused(Reason.MESSAGE_TOO_LARGE, "the message is larger than the topic's max.message.bytes")
"""The server refuses a whole request: any of its messages may be the one."""

client_log = logging.getLogger("postroom.brokers.kafka")
"""Silent: the relay itself reports, once, that the broker is gone and that it is back."""
client_log.addHandler(logging.NullHandler())
client_log.propagate = False

Headers = list[tuple[str, str | bytes | None]]
Outgoing = tuple[int, str, bytes | None, Headers, bytes | None]
"""Place in the batch, topic, key, headers, body."""


class PolledProducer:
    """A producer. After a failure it is thrown away with everything it holds, lest that be sent late."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._errors: list[KafkaError] = []
        report = self._errors.append  # the producer must not hold a reference to us, or it would not end with us
        self._producer: Producer | None = Producer({**settings, "error_cb": report}, logger=client_log)
        self._loop = asyncio.get_running_loop()
        self._batches: set[Batch] = set()
        self._gap = POLL_SOON
        self._next_poll = self._loop.call_later(self._gap, self._poll)
        self.lost: str | None = None
        self.missing: set[str] = set()
        """Topics that the producer takes to be missing, and would for minutes."""

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - as publish
        """Ask a server for its brokers. Raises `KafkaException`."""
        assert self._producer is not None  # noqa: S101 - just made
        await asyncio.to_thread(self._producer.list_topics, "__postroom", timeout)

    async def look_again(self, topics: set[str], seconds: float) -> None:
        """Make the producer check whether missing topics exist by now."""
        for topic in self.missing & topics:
            if self._producer is not None:
                self.missing.discard(topic)
                with suppress(KafkaException):  # then the messages report it
                    await asyncio.to_thread(self._producer.list_topics, topic, seconds)

    def send(self, outgoing: Iterable[Outgoing], batch: Batch, limit: int) -> None:
        """Hand the messages to the producer."""
        if self._producer is None or self.lost:
            batch.lose(self.lost or "the connection is closed")
            return
        self._batches.add(batch)
        produce, delivered = self._producer.produce, _recorder(batch)
        for index, topic, key, headers, body in outgoing:
            try:
                produce(topic, body, key, on_delivery=partial(delivered, index), headers=headers)
            except BufferError:
                batch.settle(index, NOT_SENT)
            except KafkaException as error:
                batch.settle(index, _refused(error.args[0], len(body or b""), limit))
            except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
                batch.settle(index, unsendable(error))
        self._gap = POLL_SOON
        if self._next_poll.when() > self._loop.time() + self._gap:
            self._next_poll.cancel()
            self._next_poll = self._loop.call_later(self._gap, self._poll)

    def forget(self, batch: Batch) -> None:
        """The batch has ended, even if the connection is lost later."""
        self._batches.discard(batch)

    async def close(self) -> None:
        """Throw away what is not sent, and end the producer."""
        self.lose("the connection is closed")
        self._next_poll.cancel()
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            last_reference = [self._producer]
            self._producer = None
            await asyncio.to_thread(last_reference.clear)  # ends its threads, which takes a while

    def lose(self, reason: str) -> None:
        """No more answers can come: messages without one did not reach the broker."""
        self.lost = self.lost or reason
        for batch in self._batches:
            batch.lose(self.lost)

    def _poll(self) -> None:
        assert self._producer is not None  # noqa: S101 - when it ends, so do the polls
        reports = self._producer.poll(0)
        for error in self._errors:
            if error.code() in _CONNECTION_LOST:
                self.lose(error.str())
        self._errors.clear()
        self._gap = POLL_SOON if reports else min(self._gap * POLL_GROWTH, POLL_SELDOM)
        self._next_poll = self._loop.call_later(self._gap, self._poll)


def _recorder(batch: Batch) -> Callable[[int, Any, Any], None]:
    """What the producer calls with each message's place in the batch, its error and its record."""
    answer = batch.answer

    def delivered(index: int, error: Any, record: Any) -> None:
        if error is None:
            answer(index, Accepted(f"{record.partition()}:{record.offset()}"))
        else:
            answer(index, _refused(error, len(record.value() or b""), 0))

    return delivered


def _refused(error: Any, size: int, limit: int) -> Outcome:
    code = error.code()
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return too_large(size, limit) if limit else TOO_LARGE
    if code in _TOPIC_ERRORS:
        return TargetUnavailable(error.str())
    if code in _CLUSTER_ERRORS:
        return Unreached(error.str())
    if code == KafkaError.TOPIC_EXCEPTION:
        return Refused(Reason.INVALID_TARGET, error.str(), Failure.PERMANENT)
    return Refused(f"KAFKA_{error.name()}"[:64], error.str())
