"""What a consumer knows of parked keys."""

from __future__ import annotations

from postroom.consumer.parked_keys import ASKED_AGAIN, ParkedKeys


def asked(keys: ParkedKeys, batch: set[int], parked: set[int]) -> None:
    question, wanted = keys.ask(batch)
    keys.answer(question, wanted, parked & wanted)


def test_what_the_database_knows_is_held_until_it_knows_it_no_more() -> None:
    keys = ParkedKeys()
    asked(keys, {1, 2}, {1})
    assert (keys.holds(1), keys.holds(2)) == (True, False)
    asked(keys, {3}, set())
    assert not keys.holds(1)


def test_what_was_parked_while_the_database_was_asked_is_held() -> None:
    keys = ParkedKeys()
    question, wanted = keys.ask({1})
    keys.add(1)
    keys.answer(question, wanted, set())
    assert keys.holds(1)
    asked(keys, {1}, set())
    assert not keys.holds(1)


def test_keys_that_never_come_again_are_forgotten_in_the_end() -> None:
    keys = ParkedKeys()
    for one in range(3 * ASKED_AGAIN):
        keys.add(one)
    for _ in range(3):
        asked(keys, set(), set())
    assert not any(keys.holds(one) for one in range(3 * ASKED_AGAIN))


def test_those_that_stay_parked_do_not_keep_others_from_being_asked_for() -> None:
    keys = ParkedKeys()
    stays = set(range(ASKED_AGAIN))
    for one in range(2 * ASKED_AGAIN):
        keys.add(one)
    for _ in range(2):
        asked(keys, set(), stays)
    assert [keys.holds(0), keys.holds(2 * ASKED_AGAIN - 1)] == [True, False]
