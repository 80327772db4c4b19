"""A Kafka producer, and the thread that serves its callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from postroom.brokers.port import NOT_SENT, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import too_large, unsendable
from postroom.rules.failures import Failure, Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.batch import Batch

POLL_SECONDS = 0.1
"""How often the polling thread checks whether it should end."""
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

Outgoing = tuple[int, str, bytes | None, list[tuple[str, str | bytes | None]], bytes | None]
"""Place in the batch, topic, key, headers, body."""


class ProducerThread:
    """A producer and its thread. After a failure it is thrown away with everything it holds, lest that be sent late."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._reports: deque[tuple[Batch | None, int, Any, Any]] = deque()
        reports = self._reports  # the producer must not hold a reference to us, or it would not end with us
        self._producer: Producer | None = Producer(
            {**settings, "error_cb": lambda error: reports.append((None, 0, error, None))}, logger=client_log
        )
        self._loop = asyncio.get_running_loop()
        self._batches: set[Batch] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="postroom-kafka", daemon=True)
        self.lost: str | None = None
        self.missing: set[str] = set()
        """Topics that the producer takes to be missing, and would for minutes."""

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - as publish
        """Ask a server for its brokers. Raises `KafkaException`."""
        assert self._producer is not None  # noqa: S101 - just made
        self._thread.start()
        await asyncio.to_thread(self._producer.list_topics, "__postroom", timeout)

    async def look_again(self, topics: set[str], seconds: float) -> None:
        """Make the producer check whether missing topics exist by now."""
        for topic in self.missing & topics:
            if self._producer is not None:
                self.missing.discard(topic)
                with suppress(KafkaException):  # then the messages report it
                    await asyncio.to_thread(self._producer.list_topics, topic, seconds)

    def send(self, outgoing: Sequence[Outgoing], batch: Batch, limit: int) -> None:
        """Hand the messages to the producer."""
        if self._producer is None or self.lost:
            batch.lose(self.lost or "the connection is closed")
            return
        self._batches.add(batch)
        reports, produce = self._reports, self._producer.produce
        for index, topic, key, headers, body in outgoing:

            def delivered(error: Any, record: Any, index: int = index) -> None:
                reports.append((batch, index, error, record))

            try:
                produce(topic, body, key, on_delivery=delivered, headers=headers)
            except BufferError:
                batch.settle(index, NOT_SENT)
            except KafkaException as error:
                batch.settle(index, _refused(error.args[0], len(body or b""), limit))
            except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
                batch.settle(index, unsendable(error))

    def forget(self, batch: Batch) -> None:
        """Ignore later reports on this batch."""
        self._batches.discard(batch)

    async def close(self) -> None:
        """Throw away what is not sent, and end the thread."""
        self.lose("the connection is closed")
        if self._producer is not None:
            self._producer.purge()
            self._producer = None  # now the thread holds the last reference, and destroys the producer when it ends
            self._ending.set()
            await asyncio.to_thread(self._thread.join)

    def lose(self, reason: str) -> None:
        """No more answers can come: messages without one did not reach the broker."""
        self.lost = self.lost or reason
        for batch in self._batches:
            batch.lose(self.lost)

    def _poll(self) -> None:
        producer = self._producer
        assert producer is not None  # noqa: S101 - the thread starts with it
        while not self._ending.is_set():
            producer.poll(POLL_SECONDS)
            if self._reports and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._take_reports)

    def _take_reports(self) -> None:
        while self._reports:
            batch, index, error, record = self._reports.popleft()
            if batch is None:
                if error.code() in _CONNECTION_LOST:
                    self.lose(error.str())
            elif error is None:
                batch.answer(index, Accepted(f"{record.partition()}:{record.offset()}"))
            else:
                batch.answer(index, _refused(error, len(record.value() or b""), 0))


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
