"""A member of a Kafka consumer group: the client, and the thread that drives it.

The thread polls all the time, even while nobody receives: a member that does not poll is removed from its group and
holds up the others. It queues what it polls; while the queue stays full, it pauses the partitions and keeps polling. It
alone calls the client: a call from another thread, while the first one polls, can block both for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from postroom.errors import BrokerUnavailable
from postroom.rules.routing import expression
from postroom.runtime.waiting import wait_for
from postroom.sources.kafka_partitions import Partitions
from postroom.sources.patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from logging import Logger

    from confluent_kafka import TopicPartition

    from postroom.sources.port import Received

BUSY_POLL, IDLE_POLL = 0.02, 0.1
"""Seconds after which the thread checks for commands: while acknowledgements may come, and otherwise."""
PAUSE_AFTER = 0.5
"""Seconds for which the queue may be full before the partitions are paused: resuming costs a new fetch."""
ANSWER_TIMEOUT = 10.0
TRIES = 5
CLOSE_TIMEOUT = 10.0
NO_TOPIC = "__postroom"
_CONNECTION_LOST = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL})  # noqa: SLF001 - the client's public names for them


class GroupMember:
    """A member of a group, until it is closed."""

    def __init__(self, settings: dict[str, Any], topics: Sequence[str], logger: Logger) -> None:
        try:
            self._consumer: Any = Consumer(
                {**settings, "error_cb": self._client_error, "on_commit": self._committed}, logger=logger
            )
        except KafkaException as error:
            raise BrokerUnavailable(error.args[0].str()) from None
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self.partitions = Partitions()
        self._paused = False
        self._most = 1
        self._full_since: float | None = None
        self._commands: deque[tuple[Callable[[], object], asyncio.Future[None]]] = deque()
        self._wake_thread = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postroom-kafka-source", daemon=True)
        self._news = asyncio.Event()
        self.trouble: str | None = None
        """The client's last error since it was last asked."""
        self.ended: str | None = None
        """Why its thread no longer polls."""

    async def open(self) -> None:
        """Check the topics, then join the group. Raises `BrokerUnavailable`."""
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

    async def check(self) -> None:
        """Check that a server answers and has the topics. Raises `BrokerUnavailable`."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._command(self._check)
        except (TimeoutError, RuntimeError):
            raise BrokerUnavailable(self.trouble or "the server does not answer") from None

    def _check(self) -> None:
        for topic in self._topics:
            name = NO_TOPIC if is_pattern(topic) else topic
            error = self._metadata(name).topics[name].error
            if error is not None and name == topic:
                raise BrokerUnavailable(f"topic {topic}: {error.str()}")

    def _metadata(self, topic: str) -> Any:
        """Look up a topic, in several short tries: the client keeps waiting even if it knows that no server is up."""
        for attempt in range(TRIES):
            try:
                return self._consumer.list_topics(topic, timeout=ANSWER_TIMEOUT / 2 / TRIES)
            except KafkaException as error:
                self._serve_callbacks()
                if self.trouble or attempt == TRIES - 1:
                    raise BrokerUnavailable(self.trouble or error.args[0].str()) from None
        raise AssertionError("the last attempt returns or raises")

    def _serve_callbacks(self) -> None:
        """Before the group is joined nobody polls, so nobody else serves the client's error callback."""
        if not self._thread.is_alive():
            self._consumer.poll(0)

    async def receive(self, most: int, seconds: float) -> list[Received]:
        """What has been polled; nothing after an error."""
        self._most = max(self._most, most)
        self._news.clear()
        if not self.partitions.polled and not self.trouble and not self.ended:
            await wait_for(self._news, seconds)
        found = self.partitions.take(most)
        self._wake_thread.set()
        return found

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Commit up to the first gap; during an outage, after it. Raises `BrokerUnavailable`."""
        self.partitions.acknowledge(received)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._command(self._commit)
        except KafkaException as error:
            raise BrokerUnavailable(error.args[0].str()) from None
        except (RuntimeError, TimeoutError) as error:
            raise BrokerUnavailable(str(error) or "the server does not answer") from None

    def give_back(self, received: Sequence[Received]) -> None:
        """Read again from the first of these messages in each partition."""
        self.partitions.give_back(received)
        self._wake_thread.set()

    def give_all_back(self) -> None:
        """Read everything again that is not acknowledged."""
        self.partitions.give_all_back()
        self._wake_thread.set()

    async def close(self) -> None:
        """Commit, and leave the group."""
        self._ending.set()
        self._wake_thread.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 2 * CLOSE_TIMEOUT)

    def _command(self, work: Callable[[], object]) -> asyncio.Future[None]:
        """Have the thread do something. Raises what it raises, or `RuntimeError` if the thread has ended."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._commands.append((work, future))
        self._wake_thread.set()
        if not self._thread.is_alive():
            self._refuse_commands()
        return future

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._work()
            self._await_membership()
        except Exception as error:  # noqa: BLE001 - whatever it is, the source reports it and starts over
            self.ended = f"the thread that polls has ended: {type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(Exception):
                self._consumer.close()  # which commits, because it revokes the partitions
            self.ended = self.ended or "the connection is closed"
            self._refuse_commands()
            self._wake_receiver()

    def _work(self) -> None:
        self._run_commands()
        self.partitions.seek(self._seek)
        if self.partitions.polled < self._most:
            self._full_since = None
            self._pause(pause=False)
            self._poll(BUSY_POLL if self.partitions.awaits_acknowledgements else IDLE_POLL)
        else:
            self._stay_in_group()

    def _await_membership(self) -> None:
        """Wait until we have a member id: a member that leaves before it does stays in the group until it times out."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while not self._consumer.memberid() and not self.trouble and time.monotonic() < deadline:
            self._consumer.poll(IDLE_POLL)

    def _stay_in_group(self) -> None:
        """Keep polling without fetching more, while the queue is full."""
        now = time.monotonic()
        self._full_since = self._full_since or now
        if now - self._full_since > PAUSE_AFTER:
            self._pause(pause=True)
            self._poll(0)
        self._wake_thread.clear()
        if not self._commands and self.partitions.polled >= self._most:
            self._wake_thread.wait(IDLE_POLL)

    def _run_commands(self) -> None:
        while self._commands:
            work, future = self._commands.popleft()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised where the command was given
                self._answer(future, error)
            else:
                self._answer(future, None)

    def _refuse_commands(self) -> None:
        while self._commands:
            _, future = self._commands.popleft()
            self._answer(future, RuntimeError("the connection is closed"))

    def _answer(self, future: asyncio.Future[None], error: Exception | None) -> None:
        def answer() -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(answer)

    def _poll(self, seconds: float) -> None:
        first = self._consumer.poll(seconds)
        if first is None:
            return
        records = [first]
        if not self._paused and self._most > 1:
            records += self._consumer.consume(self._most - 1, timeout=0)
        if trouble := self.partitions.add(records):
            self.trouble = trouble
        if self.partitions.polled or self.trouble:
            self._wake_receiver()

    def _seek(self, place: TopicPartition) -> bool:
        try:
            self._consumer.seek(place)
        except KafkaException:
            return False  # it is not being read yet: the next round tries again
        return True

    def _pause(self, *, pause: bool) -> None:
        if pause != self._paused:
            self._paused = pause
            change = self._consumer.pause if pause else self._consumer.resume
            with contextlib.suppress(KafkaException):
                change(self._consumer.assignment())

    def _commit(self, places: Sequence[TopicPartition] | None = None) -> None:
        """Start to commit what is done. Nobody waits for it: without a server that would never end."""
        offsets = self.partitions.to_commit(places)
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=True)

    def _committed(self, error: Any, places: Sequence[TopicPartition]) -> None:
        """Note the answer. What is refused goes with the next commit, or the partition is another member's by now."""
        if error is None:
            self.partitions.committed(places)

    def _assigned(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        del consumer
        self.partitions.assign(places)
        self._paused = False  # new partitions are not: if need be, all are paused again

    def _revoked(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        with contextlib.suppress(KafkaException, RuntimeError):
            self._commit(places)
        self._lost(consumer, places)

    def _lost(self, consumer: Any, places: Sequence[TopicPartition]) -> None:
        del consumer
        self.partitions.remove(places)

    def _client_error(self, error: Any) -> None:
        if error.code() in _CONNECTION_LOST:
            self.trouble = error.str()
            self._wake_receiver()

    def _wake_receiver(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self._news.set)
