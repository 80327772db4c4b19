from __future__ import annotations

from postroom.delivery.failed_keys import NO_READ, FailedKeys


def test_what_was_read_behind_a_failure_is_dropped_until_a_later_read() -> None:
    keys = FailedKeys()
    first = keys.next_read()
    keys.fail("k", 1)
    second = keys.next_read()
    assert keys.must_drop("k", 2, first)
    assert keys.must_drop("k", 2, second)
    keys.settled(["k"])
    assert keys.must_drop("k", 2, second), "its statement began before the database knew"
    third = keys.next_read()
    assert not keys.must_drop("k", 2, third)
    assert not keys.must_drop("k", 2, third)


def test_other_keys_and_messages_without_one_go_on() -> None:
    keys = FailedKeys()
    read = keys.next_read()
    keys.fail("k", 1)
    assert not keys.must_drop("other", 2, read)
    assert not keys.must_drop(None, 2, read)


def test_a_key_that_never_failed_is_not_remembered_when_it_is_settled() -> None:
    keys = FailedKeys()
    read = keys.next_read()
    keys.settled(["k"])
    assert not keys.must_drop("k", 2, read)


def test_a_key_is_forgotten_when_all_that_was_read_before_is_finished() -> None:
    keys = FailedKeys()
    first = keys.next_read()
    keys.handed_over(first)
    keys.finished(first)
    second = keys.next_read()
    keys.fail("k", 1)
    keys.settled(["k"])
    keys.finished(first)
    assert keys, "the second read is under way"
    keys.finished(second)
    assert not keys
    keys.fail("k", 1)
    third = keys.next_read()
    keys.finished(third)
    assert keys.must_drop("k", 2, third), "the database does not know yet"
    keys.finished(NO_READ)


def test_what_stands_behind_a_dropped_message_is_dropped_and_what_stands_before_is_not() -> None:
    """While a message waits to be dropped it is in flight, and a read passes it by: what it brings comes too early."""
    keys = FailedKeys()
    first = keys.next_read()
    keys.fail("k", 1)
    keys.settled(["k"])
    second = keys.next_read()  # the first is sent again; the third, in flight from the first read, is left out
    assert keys.must_drop("k", 3, first)
    keys.fail("k", 3)
    keys.finished(first)
    assert keys.must_drop("k", 4, second)
    assert not keys.must_drop("k", 2, second)
    keys.settled(["k"])
    assert keys.must_drop("k", 4, second)
    assert not keys.must_drop("k", 3, keys.next_read())
