"""Flow: counters of a process, and buckets of them."""

from __future__ import annotations

from postroom.rules.flow import FlowCounts, FlowKind, Place, first_minute, in_buckets, width_for

SENT = Place(7, "default", "sent")


def test_counters_are_written_whole_until_their_minute_is_over() -> None:
    counts = FlowCounts()
    seen = []
    counts.count("default", FlowKind.SENT, 0)
    seen.append(counts.has_unwritten)
    counts.count("default", FlowKind.SENT, 2)
    seen.append(counts.has_unwritten)
    first = counts.to_write(7)
    assert first == {SENT: 2}
    counts.written(first, 7)
    seen.append(counts.has_unwritten)
    assert seen == [False, True, False]
    counts.count("default", FlowKind.SENT, 3)
    assert counts.to_write(7) == {SENT: 5}


def test_what_could_not_be_written_is_written_again_beside_what_came_since() -> None:
    counts = FlowCounts()
    counts.count("default", FlowKind.SENT, 2)
    lost = counts.to_write(7)
    counts.count("default", FlowKind.DEAD, 1)
    again = counts.to_write(8)
    assert again == {SENT: 2, Place(8, "default", "dead"): 1}
    counts.written(lost, 8)
    assert counts.to_write(8) == {Place(8, "default", "dead"): 1}
    counts.written(again, 8)
    assert not counts.has_unwritten


def test_a_counter_that_grew_while_it_was_written_is_not_done() -> None:
    counts = FlowCounts()
    counts.count("default", FlowKind.SENT, 2)
    begun = counts.to_write(7)
    counts.count("default", FlowKind.SENT, 1)
    grown = counts.to_write(7)
    counts.written(begun, 7)
    assert counts.to_write(7) == grown == {SENT: 3}


def test_a_span_has_at_most_120_buckets_as_far_as_days_suffice() -> None:
    assert [width_for(minutes) for minutes in (1, 60, 120, 121, 1440, 14 * 1440, 10**6)] == [1, 1, 1, 5, 15, 360, 1440]


def test_buckets_are_added_up_and_none_is_left_out() -> None:
    counts = [(10, "sent", 1), (14, "sent", 2), (21, "dead", 4), (21, "of a newer version", 9), (4, "sent", 9)]
    buckets = in_buckets(counts, 12, 22, 5)
    assert first_minute(14, 5) == 10
    assert list(buckets) == [10, 15, 20]
    assert [bucket[FlowKind.SENT] for bucket in buckets.values()] == [3, 0, 0]
    assert [bucket[FlowKind.DEAD] for bucket in buckets.values()] == [0, 0, 4]
