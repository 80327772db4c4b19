from __future__ import annotations

from postroom.delivery.circuit import FIRST_PAUSE
from postroom.delivery.targets import CROWD, CROWD_PAUSE, LONGEST_PAUSE, MOST, Targets
from postroom.rules.target_probes import PROBES, RATE, SOONEST
from tests.unit.delivery.test_circuit import Clock


def targets() -> tuple[Targets, Clock, list[tuple[str, str | None]]]:
    said: list[tuple[str, str | None]] = []
    clock = Clock()
    return Targets(lambda topic, down: said.append((topic, down)), 5.0, clock), clock, said


def test_a_topic_that_takes_none_keeps_no_other_from_being_sent() -> None:
    found, _, said = targets()
    assert found.admits("a")
    found.failed("a", "no queue")
    found.failed("a", "no queue")
    assert (found.admits("a"), found.admits("b"), bool(found)) == (False, True, True)
    assert said == [("a", "no queue")]


def test_one_message_tries_it_at_a_time_and_when_it_gets_through_the_rest_is_freed() -> None:
    found, clock, said = targets()
    found.failed("a", "no queue")
    clock.now += FIRST_PAUSE
    assert (found.admits("a"), found.admits("a")) == (True, False)
    found.worked(["a", "b"])
    assert (found.admits("a"), list(found.to_free), bool(found)) == (True, ["a"], False)
    assert said == [("a", "no queue"), ("a", None)]
    found.failed("a", "again")
    assert not found.to_free


def test_pauses_double_up_to_a_limit() -> None:
    found, clock, _ = targets()
    found.failed("a", "no queue")
    pauses = []
    for _ in range(8):
        pauses.append(found.down["a"].probe_at - clock.now)
        clock.now = found.down["a"].probe_at
        assert found.admits("a")
        found.failed("a", "still none")
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, *[LONGEST_PAUSE] * 3]
    assert found.down["a"].reason == "still none"


def test_a_probe_that_went_another_way_makes_room_for_the_next() -> None:
    found, clock, _ = targets()
    found.failed("a", "")
    clock.now += 1
    assert found.admits("a")
    found.nothing_to_probe("a")
    found.nothing_to_probe("b")
    clock.now += 1
    assert found.admits("a")
    clock.now += 6
    assert found.admits("a")


def test_R_9_a_million_messages_come_again_at_a_bounded_rate_and_a_few_soon() -> None:
    found, clock, _ = targets()
    found.failed("a", "no queue")
    delays = [delay for _ in range(1000) for delay in found.delays("a", 1000, tried=False)]
    soon = [delay for delay in delays if delay < SOONEST]
    assert soon == [FIRST_PAUSE] * PROBES
    assert max(delays) > (1_000_000 - PROBES) / RATE
    by_minute: dict[int, int] = {}
    for delay in delays:
        by_minute[int(delay // 60)] = by_minute.get(int(delay // 60), 0) + 1
    assert max(by_minute.values()) <= 60 * RATE + 1000
    clock.now += FIRST_PAUSE
    assert found.delays("a", 1, tried=True) == [0.0]


def test_one_that_has_tried_comes_behind_the_others() -> None:
    found, clock, _ = targets()
    found.failed("a", "no queue")
    assert found.delays("a", 1, tried=False) == [FIRST_PAUSE]
    assert found.delays("a", 1, tried=True) == [2 * FIRST_PAUSE]
    clock.now += 10
    assert found.delays("a", 1, tried=True) == [0.0]


def test_when_many_come_another_relay_may_have_freed_them() -> None:
    found, clock, _ = targets()
    found.failed("a", "no queue")
    for _ in range(6):
        clock.now = found.down["a"].probe_at
        assert found.admits("a")
        found.failed("a", "no queue")
    clock.now += CROWD_PAUSE
    assert not found.admits("a")
    found.delays("a", CROWD, tried=False)
    assert (found.admits("a"), found.admits("a")) == (True, False)


def test_R_9_a_million_topics_leave_little_behind() -> None:
    found, _, said = targets()
    for number in range(2 * MOST):
        found.failed(f"t{number}", "none")
        found.delays(f"t{number}", 1, tried=True)
    found.learn({f"u{number}": "none" for number in range(MOST)})
    assert len(found.down) == len(said) == MOST
    assert found.delays("beyond", 1, tried=True)[0] >= SOONEST


def test_what_waits_in_the_database_is_learnt_and_tried_at_once() -> None:
    found, clock, said = targets()
    found.learn({"a": "no queue"})
    found.learn({"a": "no queue"})
    assert said == [("a", "no queue")]
    clock.now += FIRST_PAUSE
    assert found.unprobed() == ["a"]
    assert found.admits("a")
    assert found.unprobed() == []
    found.forget("a")
    found.forget("a")
    assert said == [("a", "no queue"), ("a", None)]


def test_a_topic_that_is_being_freed_is_not_learnt_again() -> None:
    found, _, said = targets()
    found.failed("a", "no queue")
    found.worked(["a"])
    found.learn({"a": "no queue"})
    assert (bool(found), len(said)) == (False, 2)
