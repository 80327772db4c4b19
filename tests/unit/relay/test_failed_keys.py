from __future__ import annotations

from postroom.relay.failed_keys import FailedKeys


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
