"""A Kafka consumer and the thread that drives it.

The thread polls all the time, also while nobody receives, since a member that does not poll is put out of its group and
holds up the others. What it polls it puts in a queue; when that stays full, it pauses the partitions and polls on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroom.brokers.cloudevents import KAFKA, incoming
from postroom.errors import BrokerUnavailable
from postroom.sources.offsets import Offsets
from postroom.sources.patterns import expression, is_pattern
from postroom.sources.port import Received

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from logging import Logger

GLANCE = 0.1
"""Seconds after which the thread looks whether it is wanted elsewhere."""
SOON_RECEIVED = 0.5
"""Seconds that a full queue may last before the partitions are paused, which costs a new fetch."""
PATIENCE = 10.0
FAREWELL = 10.0
NO_TOPIC = "__postroom"
_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name for it, as all with an underscore
_GONE = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL})  # noqa: SLF001 - as above
_NO_LONGER_OURS = frozenset(
    {
        KafkaError._NO_OFFSET,  # noqa: SLF001 - as above
        KafkaError._STATE,  # noqa: SLF001 - as above
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - as above
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)

Key = tuple[str, int]


class Partition:
    """One partition, for as long as it is assigned to us."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.offsets = Offsets()
        self.committed: int | None = None
        self.back_to: int | None = None
        """Where to read on; what is polled before that is done is dropped."""
        self.turn = 0
        """How often it was put back: what was received in an earlier turn cannot be given back any more."""

    def put_back(self, offset: int) -> None:
        """Read again from this offset."""
        self.offsets.rewind(offset)
        self.back_to = offset if self.back_to is None else min(offset, self.back_to)
        self.turn += 1

    def to_commit(self) -> TopicPartition | None:
        """How far it is done, where that has not been committed."""
        reached = self.offsets.reached
        if reached is None or reached == self.committed:
            return None
        return TopicPartition(self.topic, self.number, reached)


class Link:
    """A member of a group, until it is closed."""

    def __init__(self, settings: dict[str, Any], topics: Sequence[str], logger: Logger) -> None:
        self._consumer: Any = Consumer(
            {**settings, "error_cb": self._complain, "on_commit": self._committed}, logger=logger
        )
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._partitions: dict[Key, Partition] = {}
        self._paused = False
        self._most = 1
        self._space = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postroom-kafka-source", daemon=True)
        self._waiting: deque[Received] = deque()
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self._refusal: str | None = None
        self.trouble: str | None = None
        """What the client has complained of since it was last asked."""

    async def open(self) -> None:
        """Ask for the topics, then join the group. Raises `BrokerUnavailable`."""
        try:
            await self.check()
        except BaseException:
            await asyncio.to_thread(self._consumer.close)
            raise
        self._consumer.subscribe(
            [f"^{expression(topic)}$" if is_pattern(topic) else topic for topic in self._topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        self._thread.start()

    async def check(self) -> None:
        """See that a server answers, and has the topics. Raises `BrokerUnavailable`."""
        await asyncio.to_thread(self._check)

    def _check(self) -> None:
        try:
            for topic in self._topics:
                name = NO_TOPIC if is_pattern(topic) else topic
                error = self._consumer.list_topics(name, timeout=PATIENCE / 2).topics[name].error
                if error is not None and name == topic:
                    raise BrokerUnavailable(f"topic {topic}: {error.str()}")
        except KafkaException as error:
            if not self._thread.is_alive():
                self._consumer.poll(0)  # what it complains of
            raise BrokerUnavailable(self.trouble or error.args[0].str()) from None

    async def receive(self, most: int, seconds: float) -> list[Received]:
        """What has been polled; or, with trouble, nothing."""
        self._most = max(self._most, most)
        self._news.clear()
        if not self._waiting and not self.trouble:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        with self._lock:
            found = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._space.set()
        return found

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Commit as far as there is no gap. Raises `BrokerUnavailable`, `KafkaException` or `RuntimeError`."""
        with self._lock:
            for one in received:
                partition, offset, _ = one.receipt
                if self._is_ours(partition):
                    partition.offsets.done(offset)
            pairs = _to_commit(self._partitions.values())
        if not pairs:
            return
        # Not the call that waits: beside a thread that polls, its answer can get lost.
        self._refusal = None
        self._consumer.commit(offsets=[place for _, place in pairs], asynchronous=True)
        try:
            async with asyncio.timeout(PATIENCE):
                while self._refusal is None and any(self._is_open(*pair) for pair in pairs):
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            raise BrokerUnavailable("the server does not answer") from None
        if self._refusal:
            raise BrokerUnavailable(self._refusal)

    def give_back(self, received: Sequence[Received]) -> None:
        """Read again from the first of these, in each partition."""
        with self._lock:
            for one in received:
                partition, offset, turn = one.receipt
                if self._is_ours(partition) and (turn == partition.turn or offset < (partition.back_to or 0)):
                    self._put_back(partition, offset)
        self._space.set()

    def give_all_back(self) -> None:
        """Read again all that is out."""
        with self._lock:
            for partition in self._partitions.values():
                if (lowest := partition.offsets.lowest) is not None:
                    self._put_back(partition, lowest)
        self._space.set()

    async def close(self) -> None:
        """Commit, and leave the group."""
        self._ending.set()
        self._space.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, FAREWELL)

    def _is_open(self, partition: Partition, place: TopicPartition) -> bool:
        return self._is_ours(partition) and (partition.committed or 0) < place.offset

    def _is_ours(self, partition: Partition) -> bool:
        return self._partitions.get((partition.topic, partition.number)) is partition

    def _put_back(self, partition: Partition, offset: int) -> None:
        partition.put_back(offset)
        self._drop_waiting(lambda one: one.receipt[0] is partition and one.receipt[1] >= offset)

    def _drop_waiting(self, is_out: Any) -> None:
        kept = [one for one in self._waiting if not is_out(one)]
        self._waiting.clear()
        self._waiting.extend(kept)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._seek()
            if len(self._waiting) < self._most:
                self._pause(pause=False)
                self._poll(GLANCE)
            elif not self._paused:
                self._space.clear()
                if not self._space.wait(SOON_RECEIVED):
                    self._pause(pause=True)
            else:
                self._space.clear()
                self._poll(0)
                self._space.wait(GLANCE)
        self._consumer.close()  # which commits, since it gives up the partitions

    def _poll(self, seconds: float) -> None:
        first = self._consumer.poll(seconds)
        if first is None:
            return
        records = [first]
        if not self._paused and self._most > 1:
            records += self._consumer.consume(self._most - 1, timeout=0)
        with self._lock:
            for record in records:
                error = record.error()
                if error is None:
                    self._arrived(record)
                elif error.code() != _END_OF_PARTITION:
                    self.trouble = error.str()
        self._wake()

    def _arrived(self, record: Any) -> None:
        partition = self._partitions.get((record.topic(), record.partition()))
        if partition is not None and partition.back_to is None:
            partition.offsets.deliver(record.offset())
            self._waiting.append(_received(partition, record))

    def _seek(self) -> None:
        for partition in list(self._partitions.values()):
            offset = partition.back_to
            if offset is not None:
                try:
                    self._consumer.seek(TopicPartition(partition.topic, partition.number, offset))
                except KafkaException:
                    continue  # it is not being read yet: the next round tries again
                with self._lock:
                    if partition.back_to == offset:
                        partition.back_to = None

    def _pause(self, *, pause: bool) -> None:
        if pause != self._paused:
            self._paused = pause
            change = self._consumer.pause if pause else self._consumer.resume
            with contextlib.suppress(KafkaException):
                change(self._consumer.assignment())

    def _committed(self, error: Any, places: Sequence[TopicPartition]) -> None:
        """An answer to a commit. One for partitions that others have by now is no error: all comes again there."""
        refusal = None if error is None or error.code() in _NO_LONGER_OURS else error.str()
        with self._lock:
            for place in places:
                partition = self._partitions.get((place.topic, place.partition))
                failed = error or place.error
                if partition is not None and failed is None:
                    partition.committed = max(partition.committed or 0, place.offset)
                elif failed is not None and failed.code() not in _NO_LONGER_OURS:
                    refusal = failed.str()
        if error is not None:
            refusal = refusal or ""
        self._refusal = refusal if self._refusal is None else self._refusal
        self._wake()

    def _commit(self, partitions: Iterable[Partition]) -> None:
        """Commit what is done of these, in the thread, before they go to others."""
        with self._lock:
            places = [place for _, place in _to_commit(partitions)]
        if places:
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.commit(offsets=places, asynchronous=False)

    def _assigned(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        del consumer
        with self._lock:
            for place in places:
                self._partitions[place.topic, place.partition] = Partition(place.topic, place.partition)
        self._paused = False  # those that are new are not: all are paused again if need be

    def _revoked(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        keys = [(place.topic, place.partition) for place in places]
        self._commit([self._partitions[key] for key in keys if key in self._partitions])
        self._lost(consumer, places)

    def _lost(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        """What came from these is of no interest any more."""
        del consumer
        with self._lock:
            for place in places:
                self._partitions.pop((place.topic, place.partition), None)
            self._drop_waiting(lambda one: not self._is_ours(one.receipt[0]))

    def _complain(self, error: Any) -> None:
        if error.code() in _GONE:
            self.trouble = error.str()
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have ended
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._news.set()
        self._answered.set()


def _to_commit(partitions: Iterable[Partition]) -> list[tuple[Partition, TopicPartition]]:
    return [(one, place) for one in partitions if (place := one.to_commit())]


def _received(partition: Partition, record: Any) -> Received:
    headers = {name: _text(value) for name, value in record.headers() or ()}
    topic, number, offset, key = partition.topic, partition.number, record.offset(), record.key()
    message = incoming(
        KAFKA,
        headers,
        record.value(),
        id=f"{topic}/{number}/{offset}",
        topic=topic,
        key=None if key is None else _text(key),
    )
    return Received(message, (partition, offset, partition.turn))


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
