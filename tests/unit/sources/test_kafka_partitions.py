"""What the event loop and the polling thread of a Kafka source share: polled, given back and committed messages."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, TopicPartition

from postroom.sources.kafka_partitions import Partitions

HERE = TopicPartition("orders", 0)
THERE = TopicPartition("orders", 1)


class Record:
    """As much of the client's record as is used."""

    def __init__(self, offset: int, number: int = 0, error: Any = None) -> None:
        self._offset, self._number, self._error = offset, number, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._number

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"{}"

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 7


def end_of(number: int) -> Record:
    return Record(0, number, KafkaError(KafkaError._PARTITION_EOF))


def assigned(*places: TopicPartition) -> Partitions:
    partitions = Partitions()
    partitions.assign(places or [HERE])
    return partitions


def offsets(received: Any) -> list[int]:
    return [one.receipt[1] for one in received]


def to_commit(partitions: Partitions) -> list[int]:
    return [place.offset for place in partitions.to_commit()]


def test_polled_messages_are_taken_in_order() -> None:
    partitions = assigned()
    assert partitions.add([Record(3), Record(4), Record(5)]) is None
    assert offsets(partitions.take(2)) == [3, 4]
    assert (partitions.polled, offsets(partitions.take(9))) == (1, [5])
    assert partitions.awaits_acknowledgements


def test_an_error_among_the_records_is_returned() -> None:
    partitions = assigned()
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert partitions.add([Record(1), Record(0, error=error)]) == error.str()
    assert partitions.polled == 1


def test_it_is_behind_until_every_partition_has_reached_its_end() -> None:
    partitions = Partitions()
    assert not partitions
    seen = [partitions.is_behind]
    partitions.assign([HERE, THERE])
    for record in (end_of(0), end_of(1), Record(1)):
        partitions.add([record])
        seen.append(partitions.is_behind)
    assert seen == [True, True, False, True]


def test_offsets_are_committed_up_to_the_first_gap_and_once() -> None:
    partitions = assigned()
    partitions.add([Record(1), Record(2), Record(3)])
    first, second, third = partitions.take(3)
    partitions.acknowledge([third, first])
    assert to_commit(partitions) == [2]
    partitions.committed([TopicPartition("orders", 0, 2)])
    assert to_commit(partitions) == []
    partitions.acknowledge([second])
    assert to_commit(partitions) == [4]
    assert [place.offset for place in partitions.to_commit([THERE])] == []


def test_what_is_given_back_is_read_again_with_all_that_came_after_it() -> None:
    partitions = assigned()
    partitions.add([Record(1), Record(2), Record(3)])
    first, second = partitions.take(2)
    partitions.give_back([second])
    partitions.add([Record(4)])  # polled before the seek: it comes again
    assert partitions.polled == 0
    sought: list[int] = []

    def refuse(_place: TopicPartition) -> bool:
        return False

    def seek(place: TopicPartition) -> bool:
        sought.append(place.offset)
        return True

    partitions.seek(refuse)
    partitions.seek(seek)
    partitions.seek(seek)
    assert sought == [2]
    partitions.add([Record(2)])
    [again] = partitions.take(1)
    partitions.give_back([second])  # received before the rewind: it has no effect
    partitions.acknowledge([first, again])
    assert to_commit(partitions) == [3]


def test_all_that_is_not_acknowledged_can_be_given_back() -> None:
    partitions = assigned(HERE, THERE)
    partitions.add([Record(1), Record(2), Record(8, 1)])
    first, *_ = partitions.take(3)
    partitions.acknowledge([first])
    partitions.give_all_back()
    sought: list[tuple[int, int]] = []

    def seek(place: TopicPartition) -> bool:
        sought.append((place.partition, place.offset))
        return True

    partitions.seek(seek)
    assert sorted(sought) == [(0, 2), (1, 8)]


def test_messages_of_a_partition_that_was_lost_are_dropped() -> None:
    partitions = assigned(HERE, THERE)
    partitions.add([Record(1), Record(8, 1), Record(2)])
    [mine] = partitions.take(1)
    partitions.remove([HERE])
    assert offsets(partitions.take(9)) == [8]
    partitions.acknowledge([mine])
    partitions.give_back([mine])
    partitions.assign([HERE])
    assert to_commit(partitions) == []
    partitions.add([Record(1)])
    assert partitions.polled == 1
