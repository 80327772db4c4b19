"""The Kafka partitions that are assigned to a consumer, and the messages polled from them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, TopicPartition

from postroom.sources.kafka_records import received_from
from postroom.sources.offsets import Offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from postroom.sources.port import Received

_END_OF_PARTITION = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name for it


class Partition:
    """One partition, for as long as it is assigned to us."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic = topic
        self.number = number
        self.offsets = Offsets()
        self.committed: int | None = None
        self.seek_to: int | None = None
        """Where to read on; what is polled before the seek is dropped."""
        self.at_end = False
        """Whether everything in the partition was polled."""
        self.rewinds = 0
        """How often it was rewound: what was received before the last time cannot be given back any more."""

    def rewind(self, offset: int) -> None:
        """Read again from this offset."""
        self.offsets.rewind(offset)
        self.seek_to = offset if self.seek_to is None else min(offset, self.seek_to)
        self.rewinds += 1
        self.at_end = False

    def to_commit(self) -> TopicPartition | None:
        """The offset to commit, if it has moved since the last commit."""
        reached = self.offsets.reached
        if reached is None or reached == self.committed:
            return None
        return TopicPartition(self.topic, self.number, reached)


class Partitions:
    """The assigned partitions and the queue of polled messages. The event loop and the polling thread share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._assigned: dict[tuple[str, int], Partition] = {}
        self._polled: deque[Received] = deque()
        self._was_assigned = False

    def __bool__(self) -> bool:
        """Whether any partition is assigned."""
        return bool(self._assigned)

    @property
    def polled(self) -> int:
        """Messages that were polled and not taken yet."""
        return len(self._polled)

    @property
    def is_behind(self) -> bool:
        """Whether the group has assigned nothing yet, or a partition's end has not been seen."""
        with self._lock:
            return not self._was_assigned or not all(one.at_end for one in self._assigned.values())

    @property
    def awaits_acknowledgements(self) -> bool:
        """Whether messages are neither acknowledged nor given back."""
        return any(partition.offsets.lowest is not None for partition in self._assigned.values())

    def add(self, records: Iterable[Any]) -> str | None:
        """Queue polled records. Returns the last error among them."""
        trouble: str | None = None
        with self._lock:
            for record in records:
                error = record.error()
                if error is None:
                    self._add(record)
                elif error.code() == _END_OF_PARTITION:
                    self._reached_end(record)
                else:
                    trouble = error.str()
        return trouble

    def take(self, most: int) -> list[Received]:
        """Up to `most` messages from the queue."""
        with self._lock:
            return [self._polled.popleft() for _ in range(min(most, len(self._polled)))]

    def acknowledge(self, received: Sequence[Received]) -> None:
        """These messages are done; those of partitions that are no longer ours are ignored."""
        with self._lock:
            for one in received:
                partition, offset, _ = one.receipt
                if self._is_assigned(partition):
                    partition.offsets.done(offset)

    def give_back(self, received: Sequence[Received]) -> None:
        """Rewind each partition to the first of these messages."""
        with self._lock:
            for one in received:
                partition, offset, rewinds = one.receipt
                is_current = rewinds == partition.rewinds or offset < (partition.seek_to or 0)
                if self._is_assigned(partition) and is_current:
                    self._rewind(partition, offset)

    def give_all_back(self) -> None:
        """Rewind each partition to the first message that is not acknowledged."""
        with self._lock:
            for partition in self._assigned.values():
                if (lowest := partition.offsets.lowest) is not None:
                    self._rewind(partition, lowest)

    def seek(self, seek: Callable[[TopicPartition], bool]) -> None:
        """Call `seek` for each partition that was rewound, until it returns True."""
        for partition in list(self._assigned.values()):
            offset = partition.seek_to
            if offset is not None and seek(TopicPartition(partition.topic, partition.number, offset)):
                with self._lock:
                    if partition.seek_to == offset:
                        partition.seek_to = None

    def assign(self, places: Sequence[TopicPartition]) -> None:
        """The group has assigned these partitions to us."""
        with self._lock:
            for place in places:
                self._assigned[place.topic, place.partition] = Partition(place.topic, place.partition)
        self._was_assigned = True

    def remove(self, places: Sequence[TopicPartition]) -> None:
        """These partitions are no longer ours: drop what was polled from them."""
        with self._lock:
            for place in places:
                self._assigned.pop((place.topic, place.partition), None)
            self._drop(lambda one: not self._is_assigned(one.receipt[0]))

    def to_commit(self, places: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """The offsets to commit, of all partitions or of these."""
        with self._lock:
            keys = list(self._assigned) if places is None else [(place.topic, place.partition) for place in places]
            partitions = [self._assigned[key] for key in keys if key in self._assigned]
            return [place for one in partitions if (place := one.to_commit())]

    def committed(self, places: Sequence[TopicPartition]) -> None:
        """These offsets were committed, except those with an error."""
        with self._lock:
            for place in places:
                partition = self._assigned.get((place.topic, place.partition))
                if partition is not None and place.error is None:
                    partition.committed = place.offset

    def _add(self, record: Any) -> None:
        partition = self._assigned.get((record.topic(), record.partition()))
        if partition is not None and partition.seek_to is None:
            partition.at_end = False
            partition.offsets.deliver(record.offset())
            self._polled.append(received_from(partition, record))

    def _reached_end(self, record: Any) -> None:
        partition = self._assigned.get((record.topic(), record.partition()))
        if partition is not None and partition.seek_to is None:
            partition.at_end = True

    def _is_assigned(self, partition: Partition) -> bool:
        return self._assigned.get((partition.topic, partition.number)) is partition

    def _rewind(self, partition: Partition, offset: int) -> None:
        partition.rewind(offset)
        self._drop(lambda one: one.receipt[0] is partition and one.receipt[1] >= offset)

    def _drop(self, is_outdated: Callable[[Received], bool]) -> None:
        kept = [one for one in self._polled if not is_outdated(one)]
        self._polled.clear()
        self._polled.extend(kept)
