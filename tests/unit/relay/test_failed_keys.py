from __future__ import annotations

from postroom.relay.failed_keys import NO_READ, FailedKeys


def test_what_was_read_behind_a_failure_is_dropped_until_a_later_read() -> None:
    keys = FailedKeys()
    first = keys.next_read()
    keys.fail("k")
    second = keys.next_read()
    assert keys.must_drop("k", first)
    assert keys.must_drop("k", second)
    keys.settled(["k"])
    assert keys.must_drop("k", second), "its statement began before the database knew"
    third = keys.next_read()
    assert not keys.must_drop("k", third)
    assert not keys.must_drop("k", third)


def test_other_keys_and_messages_without_one_go_on() -> None:
    keys = FailedKeys()
    read = keys.next_read()
    keys.fail("k")
    assert not keys.must_drop("other", read)
    assert not keys.must_drop(None, read)


def test_a_key_that_never_failed_is_not_remembered_when_it_is_settled() -> None:
    keys = FailedKeys()
    read = keys.next_read()
    keys.settled(["k"])
    assert not keys.must_drop("k", read)


def test_a_key_is_forgotten_when_all_that_was_read_before_is_carried() -> None:
    keys = FailedKeys()
    first = keys.next_read()
    keys.handed_over(first)
    keys.carried(first)
    second = keys.next_read()
    keys.fail("k")
    keys.settled(["k"])
    keys.carried(first)
    assert keys, "the second read is under way"
    keys.carried(second)
    assert not keys
    keys.fail("k")
    third = keys.next_read()
    keys.carried(third)
    assert keys.must_drop("k", third), "the database does not know yet"
    keys.carried(NO_READ)
