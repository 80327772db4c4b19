from __future__ import annotations

from postroom.delivery.circuit import FIRST_PAUSE, LONGEST_PAUSE, Circuit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def circuit() -> tuple[Circuit, Clock, list[str | None]]:
    said: list[str | None] = []
    clock = Clock()
    return Circuit(said.append, 5.0, clock), clock, said


def test_closed_it_lets_everything_through() -> None:
    breaker, _, said = circuit()
    assert (breaker.admit(7), breaker.pause(), breaker.closed_or_probing()) == (7, 0.0, True)
    breaker.worked()
    assert said == []


def test_open_it_lets_one_message_try_after_a_pause_and_no_second() -> None:
    breaker, clock, said = circuit()
    breaker.failed("refused")
    assert (breaker.admit(7), breaker.closed_or_probing()) == (0, False)
    clock.now += FIRST_PAUSE
    assert (breaker.admit(7), breaker.admit(7), breaker.closed_or_probing()) == (1, 0, True)
    breaker.worked()
    assert (breaker.admit(7), said) == (7, ["refused", None])


def test_its_pauses_double_up_to_a_limit_and_it_speaks_once() -> None:
    breaker, clock, said = circuit()
    breaker.failed("refused")
    pauses = []
    for _ in range(9):
        pauses.append(breaker.pause())
        clock.now += breaker.pause()
        assert breaker.admit(7) == 1
        breaker.failed("refused again")
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert said == ["refused"]


def test_what_was_on_its_way_when_it_opened_does_not_lengthen_the_pause() -> None:
    breaker, _, _ = circuit()
    for _ in range(4):
        breaker.failed("refused")
    assert breaker.pause() == FIRST_PAUSE


def test_a_probe_that_had_nothing_to_send_or_went_another_way_makes_room_for_the_next() -> None:
    breaker, clock, _ = circuit()
    breaker.failed("")
    clock.now += 1
    assert breaker.admit(7) == 1
    breaker.nothing_to_probe()
    assert breaker.admit(7) == 1
    clock.now += 5
    assert breaker.admit(7) == 1
