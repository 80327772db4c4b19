from __future__ import annotations

import msgspec

from postroom import Message
from postroom.delivery.suspects import MOST, REMEMBERED, TOGETHER, Suspects
from postroom.store.outbox.leases import Claimed
from tests.unit.delivery.test_circuit import Clock


def claimed(count: int, topic: str = "t") -> list[Claimed]:
    return [Claimed(position, -1, 1, 0, 1, Message.new(topic, {"n": position})) for position in range(1, count + 1)]


def test_without_suspects_all_goes_together() -> None:
    messages = claimed(100)
    assert Suspects().first_part(messages) is messages


def test_R_9_each_time_fewer_suspects_are_sent_together() -> None:
    suspects, messages = Suspects(), claimed(100)
    sizes = []
    for _ in range(4):
        suspects.strike(messages)
        sizes.append(len(suspects.first_part(messages)))
    assert sizes == [*TOGETHER, 1, 1]


def test_a_part_ends_where_the_next_message_has_more_or_less_against_it() -> None:
    suspects, messages = Suspects(), claimed(10)
    suspects.strike(messages[3:5])
    parts = []
    while messages:
        part = suspects.first_part(messages)
        parts.append(len(part))
        messages = messages[len(part) :]
    assert parts == [3, 2, 5]


def test_what_the_broker_took_before_says_nothing_and_what_it_takes_later_does() -> None:
    clock = Clock()
    suspects, [one] = Suspects(clock=clock), claimed(1)
    assert not suspects
    suspects.strike([one])
    suspects.worked(clock.now, {"t"})
    assert not suspects.of(one).broker_worked
    suspects.worked(clock.now + 1, {"other"})
    assert (suspects.of(one).broker_worked, suspects.of(one).target_worked) == (True, False)
    suspects.worked(clock.now + 1, {"t"})
    assert suspects.of(one).target_worked
    suspects.strike([one])
    assert (suspects.of(one).broker_worked, suspects.of(one).target_worked, suspects.of(one).count) == (False, False, 2)
    suspects.clear([one])
    assert (suspects.of(one).count, bool(suspects)) == (0, False)


def test_R_9_what_failed_by_an_answer_is_not_at_fault_when_the_broker_goes_away_afterwards() -> None:
    """It never failed to be reached with that message, so what it took since says nothing of an outage."""
    clock = Clock()
    suspects, [one] = Suspects(clock=clock), claimed(1)
    suspects.strike([one])
    suspects.strike([one], answered=True)
    suspects.worked(clock.now + 1, {"t"})
    assert (suspects.of(one).broker_worked, suspects.of(one).target_worked, suspects.of(one).count) == (False, False, 2)


def test_what_is_remembered_is_bounded() -> None:
    suspects, messages = Suspects(), claimed(MOST + 5)
    suspects.strike(messages)
    assert suspects.of(messages[0]).count == 0
    assert suspects.of(messages[-1]).count == 1


def test_R_9_none_that_may_be_in_flight_is_forgotten() -> None:
    """Otherwise a function that fails with all of them would get them together for ever, and no attempt would count."""
    suspects, messages = Suspects(in_flight=2 * MOST), claimed(2 * MOST)
    suspects.strike(messages)
    assert suspects.of(messages[0]).count == 1


def test_nothing_is_remembered_of_messages_that_do_not_come_again() -> None:
    """Another relay sent them; or they were in the log alone, and get a row with another position."""
    clock = Clock()
    suspects, [sent_elsewhere, later, of_log] = Suspects(clock=clock), claimed(3)
    suspects.strike([msgspec.structs.replace(of_log, position=-3)])
    assert not suspects
    suspects.strike([sent_elsewhere])
    clock.now += REMEMBERED / 2
    suspects.strike([later])
    clock.now += REMEMBERED / 2
    suspects.first_part([of_log])
    assert (suspects.of(sent_elsewhere).count, suspects.of(later).count) == (0, 1)
