"""A Kafka consumer and the thread that drives it.

The thread polls all the time, also while nobody receives, since a member that does not poll is put out of its group and
holds up the others. What it polls it puts in a queue; when that stays full, it pauses the partitions and polls on.
It alone calls the client: a call from a second thread, while the first polls, can block both for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from postroom.errors import BrokerUnavailable
from postroom.rules.routing import expression
from postroom.runtime.waiting import wait_for
from postroom.sources.kafka_records import Partition, received
from postroom.sources.patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from logging import Logger

    from postroom.sources.port import Received

GLANCE, IDLE_GLANCE = 0.02, 0.1
"""Seconds after which the thread looks whether it has orders: while messages are out, and else."""
SOON_RECEIVED = 0.5
"""Seconds that a full queue may last before the partitions are paused, which costs a new fetch."""
PATIENCE = 10.0
TRIES = 5
FAREWELL = 10.0
NO_TOPIC = "__postroom"
_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name for it, as all with an underscore
_GONE = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL})  # noqa: SLF001 - as above
Key = tuple[str, int]


class Link:
    """A member of a group, until it is closed."""

    def __init__(self, settings: dict[str, Any], topics: Sequence[str], logger: Logger) -> None:
        try:
            self._consumer: Any = Consumer(
                {**settings, "error_cb": self._complain, "on_commit": self._committed}, logger=logger
            )
        except KafkaException as error:
            raise BrokerUnavailable(error.args[0].str()) from None
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._partitions: dict[Key, Partition] = {}
        self._paused = False
        self._most = 1
        self._full_since: float | None = None
        self._orders: deque[tuple[Callable[[], object], asyncio.Future[None]]] = deque()
        self._space = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postroom-kafka-source", daemon=True)
        self._waiting: deque[Received] = deque()
        self._news = asyncio.Event()
        self.trouble: str | None = None
        """What the client has complained of since it was last asked."""
        self.ended: str | None = None
        """Why its thread polls no more."""
        self._assigned_at_all = False

    async def open(self) -> None:
        """Ask for the topics, then join the group. Raises `BrokerUnavailable`."""
        try:
            await asyncio.to_thread(self._check)
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

    @property
    def is_behind(self) -> bool:
        """Whether the group has assigned nothing yet, or a partition's end has not been seen."""
        with self._lock:
            return not self._assigned_at_all or not all(one.at_end for one in self._partitions.values())

    async def check(self) -> None:
        """See that a server answers, and has the topics. Raises `BrokerUnavailable`."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._order(self._check)
        except (TimeoutError, RuntimeError):
            raise BrokerUnavailable(self.trouble or "the server does not answer") from None

    def _check(self) -> None:
        for topic in self._topics:
            name = NO_TOPIC if is_pattern(topic) else topic
            error = self._metadata(name).topics[name].error
            if error is not None and name == topic:
                raise BrokerUnavailable(f"topic {topic}: {error.str()}")

    def _metadata(self, topic: str) -> Any:
        """What the servers say of a topic; the client waits on where it knows already that there are none."""
        for attempt in range(TRIES):
            try:
                return self._consumer.list_topics(topic, timeout=PATIENCE / 2 / TRIES)
            except KafkaException as error:
                self._serve_complaints()
                if self.trouble or attempt == TRIES - 1:
                    raise BrokerUnavailable(self.trouble or error.args[0].str()) from None
        raise AssertionError("the last attempt returns or raises")

    def _serve_complaints(self) -> None:
        """Before the group is joined nobody polls, and so hears what the client has to say."""
        if not self._thread.is_alive():
            self._consumer.poll(0)

    async def receive(self, most: int, seconds: float) -> list[Received]:
        """What has been polled; or, with trouble, nothing."""
        self._most = max(self._most, most)
        self._news.clear()
        if not self._waiting and not self.trouble and not self.ended:
            await wait_for(self._news, seconds)
        with self._lock:
            found = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        self._space.set()
        return found

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Have it committed as far as there is no gap; in an outage, after it. Raises `BrokerUnavailable`."""
        with self._lock:
            for one in received:
                partition, offset, _ = one.receipt
                if self._is_ours(partition):
                    partition.offsets.done(offset)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._order(lambda: self._commit(list(self._partitions.values())))
        except KafkaException as error:
            raise BrokerUnavailable(error.args[0].str()) from None
        except (RuntimeError, TimeoutError) as error:
            raise BrokerUnavailable(str(error) or "the server does not answer") from None

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
            await asyncio.to_thread(self._thread.join, 2 * FAREWELL)

    def _is_ours(self, partition: Partition) -> bool:
        return self._partitions.get((partition.topic, partition.number)) is partition

    def _put_back(self, partition: Partition, offset: int) -> None:
        partition.put_back(offset)
        self._drop_waiting(lambda one: one.receipt[0] is partition and one.receipt[1] >= offset)

    def _drop_waiting(self, is_out: Any) -> None:
        kept = [one for one in self._waiting if not is_out(one)]
        self._waiting.clear()
        self._waiting.extend(kept)

    def _order(self, work: Callable[[], object]) -> asyncio.Future[None]:
        """Have the thread do something; ends with what it raises, or `RuntimeError` when it has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._orders.append((work, future))
        self._space.set()
        if not self._thread.is_alive():
            self._refuse_orders()
        return future

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._work()
            self._become_known()
        except Exception as error:  # noqa: BLE001 - whatever it is, the source is told, and begins anew
            self.ended = f"the thread that polls has ended: {type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                self._consumer.close()  # which commits, since it gives up the partitions
            self.ended = self.ended or "the connection is closed"
            self._refuse_orders()
            self._wake()

    def _work(self) -> None:
        self._obey()
        self._seek()
        if len(self._waiting) < self._most:
            self._full_since = None
            self._pause(pause=False)
            self._poll(self._glance())
        else:
            self._stay()

    def _become_known(self) -> None:
        """Wait until the group has told us who we are: who leaves before that stays in it, until it counts as dead."""
        deadline = time.monotonic() + FAREWELL
        while not self._consumer.memberid() and not self.trouble and time.monotonic() < deadline:
            self._consumer.poll(IDLE_GLANCE)

    def _glance(self) -> float:
        is_out = any(partition.offsets.lowest is not None for partition in self._partitions.values())
        return GLANCE if is_out else IDLE_GLANCE

    def _stay(self) -> None:
        """Let nothing more in, but stay in the group."""
        now = time.monotonic()
        self._full_since = self._full_since or now
        if now - self._full_since > SOON_RECEIVED:
            self._pause(pause=True)
            self._poll(0)
        self._space.clear()
        if not self._orders and len(self._waiting) >= self._most:
            self._space.wait(IDLE_GLANCE)

    def _obey(self) -> None:
        while self._orders:
            work, future = self._orders.popleft()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whoever has ordered it hears of it
                self._answer(future, error)
            else:
                self._answer(future, None)

    def _refuse_orders(self) -> None:
        while self._orders:
            _, future = self._orders.popleft()
            self._answer(future, RuntimeError("the connection is closed"))

    def _answer(self, future: asyncio.Future[None], error: Exception | None) -> None:
        def tell() -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop may have ended
            self._loop.call_soon_threadsafe(tell)

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
                elif error.code() == _END_OF_PARTITION:
                    self._ended(record)
                else:
                    self.trouble = error.str()
        if self._waiting or self.trouble:
            self._wake()

    def _arrived(self, record: Any) -> None:
        partition = self._partitions.get((record.topic(), record.partition()))
        if partition is not None and partition.back_to is None:
            partition.at_end = False
            partition.offsets.deliver(record.offset())
            self._waiting.append(received(partition, record))

    def _ended(self, record: Any) -> None:
        partition = self._partitions.get((record.topic(), record.partition()))
        if partition is not None and partition.back_to is None:
            partition.at_end = True

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

    def _commit(self, partitions: Iterable[Partition]) -> None:
        """Have what is done of these committed. It is not waited for: where no server answers, that has no end."""
        with self._lock:
            places = [place for one in partitions if (place := one.to_commit())]
        if places:
            self._consumer.commit(offsets=places, asynchronous=True)

    def _committed(self, error: Any, places: Sequence[TopicPartition]) -> None:
        """The answer. What is refused goes with the next commit; or it is with others by now, and comes again there."""
        with self._lock:
            for place in places:
                partition = self._partitions.get((place.topic, place.partition))
                if partition is not None and error is None and place.error is None:
                    partition.committed = place.offset

    def _assigned(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        del consumer
        with self._lock:
            for place in places:
                self._partitions[place.topic, place.partition] = Partition(place.topic, place.partition)
        self._assigned_at_all = True
        self._paused = False  # those that are new are not: all are paused again if need be

    def _revoked(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        keys = [(place.topic, place.partition) for place in places]
        with contextlib.suppress(KafkaException, RuntimeError):
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
            self._loop.call_soon_threadsafe(self._news.set)
